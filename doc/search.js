/* Ranks the results of the site's search in the browser; html_search_scorer of conf.py puts it into searchtools.js.
 *
 * Without it a page scores by its best single word, so that pages with one word of the question in any heading are
 * equal and the alphabet decides. Here a page scores by the heading that has most words of the question, and the
 * result leads to this heading if it has all of them.
 */
"use strict";

const headingsByFile = new Map();

/* Lists of all commands and options come after guides of equal fit. */
const isList = (docname) => docname.startsWith("reference/") && docname !== "reference/glossary";

/* The words of a text, without the question mark. */
const findWords = (text) => splitQuery(text.toLowerCase()).join(" ");

/* Stems of the words in a text; words such as "how", "do" and "the" are left out. */
const findStems = (text) => {
  const stemmer = new Stemmer();
  const words = splitQuery(text.toLowerCase()).filter((word) => !stopwords.has(word));
  return new Set(words.map((word) => stemmer.stemWord(word)));
};

/* The headings of a page, from the index. */
const findHeadings = (filename) => {
  if (headingsByFile.size === 0) {
    for (const [title, places] of Object.entries(Search._index.alltitles)) {
      const stems = findStems(title);
      for (const [file, id] of places) {
        const name = Search._index.filenames[file];
        headingsByFile.set(name, [...(headingsByFile.get(name) ?? []), { heading: title, id, stems }]);
      }
    }
  }
  return headingsByFile.get(filename) ?? [];
};

var Scorer = {
  /* Sphinx gives the scorer a result without its query, so that the query is read from the address, as
   * searchtools.js does. The scorer may also change the result, which leads to a heading from then on. */
  score: (result) => {
    const [docname, title, , , score, filename, kind] = result;
    const query = new URLSearchParams(window.location.search).get("q") ?? "";
    if (kind === "title") return score + (findWords(query) === findWords(title.split(" > ").pop()) ? 40 : 20);
    if (kind !== "text") return score;
    const wanted = findStems(query);
    let best = { fit: 0 };
    for (const { heading, id, stems } of findHeadings(filename)) {
      const found = [...wanted].filter((stem) => stems.has(stem)).length;
      if (!found) continue;
      // A short heading is about little else, and a question has its answer below it.
      const fit = (20 * found) / wanted.size + (5 * found) / stems.size + (heading.endsWith("?") ? 5 : id ? 0 : 4);
      if (fit > best.fit) best = { fit, heading, id, isWhole: found === wanted.size };
    }
    if (best.isWhole && best.id) {
      result[1] = `${title} > ${best.heading}`;
      result[2] = `#${best.id}`;
    }
    return score + best.fit - (isList(docname) ? 5 : 0);
  },

  // The defaults of Sphinx, which an own scorer has to repeat.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
