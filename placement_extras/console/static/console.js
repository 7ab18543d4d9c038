// htmx shows an answer within the current page. If no answer comes, or if the answer is not from the console, the
// browser opens the address of the request as a page.
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
