// Asks the search of a built site as a browser does: node search.js SITE QUESTION...
// Prints one JSON list a question: the results in the order of the page, each [address, title].
"use strict";

const fs = require("fs");
const vm = require("vm");

const [site, ...questions] = process.argv.slice(2);
const browser = {
  document: { getElementById: () => null, querySelectorAll: () => [] },
  location: { search: "" },
  localStorage: { setItem() {} },
  DOCUMENTATION_OPTIONS: {},
  SPHINX_HIGHLIGHT_ENABLED: false,
  URLSearchParams,
  _ready() {},
  _: (text) => text,
};
browser.window = browser;
vm.createContext(browser);

// One script, because each has constants that the others use.
const scripts = ["_static/searchtools.js", "_static/language_data.js", "searchindex.js"];
const ask = `
  const ask = (question) => {
    window.location.search = "?q=" + encodeURIComponent(question);
    // The page takes results from the end.
    return Search._performSearch(...Search._parseQuery(question)).reverse().map((r) => [r[0] + r[2], r[1]]);
  };
  globalThis.ask = ask;
`;
vm.runInContext([...scripts.map((name) => fs.readFileSync(`${site}/${name}`, "utf8")), ask].join("\n"), browser);
for (const question of questions) console.log(JSON.stringify(browser.ask(question)));
