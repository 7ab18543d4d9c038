// What htmx cannot show in the page is opened as a page: no answer, or one that the console did not write.
"use strict";

const open = (event) => {
  event.preventDefault();
  location.assign(event.detail.pathInfo.finalRequestPath);
};
for (const name of ["sendError", "timeout"]) {
  document.addEventListener(`htmx:${name}`, open);
}
document.addEventListener("htmx:beforeSwap", (event) => {
  if (!event.detail.serverResponse.includes('<main id="content"')) {
    open(event);
  }
});
