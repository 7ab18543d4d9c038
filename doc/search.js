/* The site's search in the browser; html_search_scorer of conf.py puts this file behind searchtools.js of Sphinx.
 *
 * Sphinx shows only pages that have each word of a question, and scores a page by its best single word.
 * This search is different:
 * - Words of operators also find the words of our pages: "revert" finds "roll back".
 * - The score of a page depends on the share of the question's words that its text and its best heading have.
 *   Rare words count more. A page that lacks some words is shown if it has nearly as many as the best page.
 * - The result links to the best heading if this heading has most words of the question.
 */
"use strict";

const stemmer = new Stemmer();

/* The words of our pages, each with words of operators for the same thing. A question with these finds our words. */
const OPERATOR_WORDS = {
  "many hosts": ["all hypervisors", "all hosts", "every hypervisor", "every host", "all compute nodes"],
  "same settings": ["one config", "same config", "central config", "one configuration", "upload", "distribute"],
  guest: ["vm", "vms", "instance", "instances", "server", "servers", "virtual machine", "virtual machines"],
  host: ["hypervisor", "hypervisors", "compute node", "compute nodes"],
  "roll back": ["revert", "undo", "go back", "going back", "rollback", "downgrade", "previous version", "old version"],
  stops: ["crash", "crashes", "crashed", "dies", "died", "dead", "down", "killed", "restart", "restarts"],
  workers: ["worker processes", "processes"],
  cpus: ["cores", "cpu", "pinned", "pinning", "affinity"],
  keystone: ["auth", "authentication", "login", "token", "tokens"],
  options: ["parameters", "settings", "setting", "config", "configuration", "configure"],
  leave: ["uninstall", "remove", "decommission"],
  "leave back": ["migrate away", "move away", "switch back", "return"],
  "nothing fits": ["no candidates", "no allocation candidates", "no valid host", "no valid hosts", "nothing found"],
  "more fits": ["remaining capacity", "free capacity", "capacity left", "headroom", "capacity planning"],
  "changes since": ["poll", "polling", "watch", "subscribe", "webhook", "notifications"],
  price: ["cheap", "cheapest", "cost"],
  maintenance: ["drain", "evacuate"],
  "io block": ["disk", "disks", "iops", "throughput"],
  "caches resctrl": ["cache", "llc", "l3"],
  "match not": ["orphaned", "orphans", "inconsistent", "leftover", "stale"],
  BE: ["be class", "be guest", "be guests", "low priority", "preemptible", "spot"],
  beside: ["alongside", "same host", "together with", "next to", "coexist"],
  interference: ["noisy neighbour", "noisy neighbor", "noisy neighbours", "noisy neighbors", "slow", "slowed"],
  reclaimed: ["overcommit", "oversubscribe", "oversubscription"],
  failover: ["high availability", "ha", "redundancy", "redundant", "standby"],
  postgresql: ["postgres", "pgsql"],
  "try beside": ["evaluate", "rehearse", "test without touching", "without risk"],
};

/* Words of questions that do not name a subject, in addition to the stop words of Sphinx. */
const QUESTION_WORDS = new Set("can could get happens mean meaning means need number put reason reasons see want".split(" "));

/* Penalties. Lists of commands, options and changes, and tables of contents, come after guides that fit as well. */
const findPenalty = (docname) => {
  if (/^(reference\/(?!glossary$)|releases$|host\/nova-doors$)/.test(docname)) return 20;
  return /^(.*\/)?index$/.test(docname) && docname !== "tutorial/index" ? 8 : 0;
};

/* The stem of a word, or "" for a word that names no subject. A word in capitals is a name: BE is a class. */
const findStem = (word) => {
  const lower = word.toLowerCase();
  const isName = word.length > 1 && word === word.toUpperCase();
  if (QUESTION_WORDS.has(lower) || (stopwords.has(lower) && !isName)) return "";
  return stemmer.stemWord(lower);
};

const findStems = (text) => new Set(splitQuery(text).map(findStem).filter((stem) => stem));

/* A question as a list of sets of stems. A page fits if it has at least one stem of each set. */
const parseQuestion = (question) => {
  const sets = [];
  let rest = ` ${splitQuery(question).join(" ")} `;
  for (const [ours, theirs] of Object.entries(OPERATOR_WORDS)) {
    for (const phrase of theirs) {
      const found = rest.toLowerCase().indexOf(` ${phrase} `);
      if (found < 0) continue;
      rest = `${rest.slice(0, found)} ${rest.slice(found + phrase.length + 1)}`;
      const own = phrase.includes(" ") ? [] : findStems(phrase);
      sets.push(...[...findStems(ours)].map((stem) => new Set([stem, ...own])));
    }
  }
  sets.push(...[...findStems(rest)].map((stem) => new Set([stem])));
  return sets;
};

/* The numbers of the pages with a stem. A stem that no page has finds all words that begin with it. */
const findPages = (stem, headings) => {
  const { terms, titleterms } = Search._index;
  const pages = [terms, titleterms].flatMap((index) => {
    if (Object.hasOwn(index, stem)) return index[stem];
    if (stem.length < 4) return [];
    return Object.keys(index).filter((term) => term.startsWith(stem)).flatMap((term) => index[term]);
  });
  const named = [...headings].filter(([, list]) => list.some(({ stems }) => stems.has(stem))).map(([page]) => page);
  return [...pages, ...named];
};

/* The headings of each page, by its number. */
const readHeadings = () => {
  const headings = new Map();
  for (const [heading, places] of Object.entries(Search._index.alltitles)) {
    const stems = findStems(heading);
    for (const [page, id] of places) {
      headings.set(page, [...(headings.get(page) ?? []), { heading, id, stems }]);
    }
  }
  return headings;
};

const sumWeights = (words) => words.reduce((sum, { weight }) => sum + weight, 0);

/* The heading of a page that fits best. Short headings score higher, because they are about little else. Headings
 * that are questions score higher, because their answer is below. */
const findBestHeading = (wanted, headings, titleStems) => {
  const hasWord = (stems) => ({ set }) => [...set].some((stem) => stems.has(stem));
  let best = { fit: 0, share: 0 };
  for (const { heading, id, stems } of headings) {
    const found = wanted.filter(hasWord(stems));
    if (!found.length) continue;
    const share = sumWeights(found);
    const shareOfTitle = sumWeights(wanted.filter((word) => !hasWord(stems)(word) && hasWord(titleStems)(word)));
    const brevity = Math.min(1, found.length / stems.size);
    const fit = 20 * share + 10 * shareOfTitle + 5 * brevity + (heading.endsWith("?") ? 5 : id ? 0 : 4);
    if (fit > best.fit) best = { fit, heading, id, share: share + shareOfTitle };
  }
  return best;
};

/* The words of a question that at least one page has, with these pages. The sum of the weights of the words is 1. */
const weighWords = (question, headings) => {
  const words = parseQuestion(question)
    .map((set) => ({ set, pages: new Set([...set].flatMap((stem) => findPages(stem, headings))) }))
    .filter(({ pages }) => pages.size)
    // A word on very few pages is often not a term of ours, so it counts little more than a word on ten pages.
    .map((word) => ({ ...word, weight: Math.log((10 + Search._index.docnames.length) / (5 + word.pages.size)) }));
  const total = sumWeights(words);
  return words.map((word) => ({ ...word, weight: word.weight / total }));
};

/* The results, in the form of searchtools.js: pages that have most words of the question. */
const findResults = (question) => {
  const { docnames, filenames, titles } = Search._index;
  const headings = readHeadings();
  const wanted = weighWords(question, headings);
  const shares = docnames.map((_, page) => sumWeights(wanted.filter(({ pages }) => pages.has(page))));
  const results = [];
  shares.forEach((share, page) => {
    const best = findBestHeading(wanted, headings.get(page) ?? [], findStems(titles[page]));
    if (!share || (share < 0.7 * Math.max(...shares) && best.share < 0.4)) return;
    const leads = best.id && best.share > 0.6;
    const title = leads ? `${titles[page]} > ${best.heading}` : titles[page];
    const score = 30 * share + best.fit - findPenalty(docnames[page]);
    results.push([docnames[page], title, leads ? `#${best.id}` : "", null, score, filenames[page], "text"]);
  });
  return results;
};

/* Replaces functions of Sphinx by the functions above. If Sphinx does not have functions of these names, its own
 * search stays. */
const extendSearch = () => {
  if (!Search._parseQuery || !Search.performTermsSearch) return;
  const parseQuery = Search._parseQuery;
  let question = "";
  Search._parseQuery = (query) => {
    question = query;
    const [text, searchTerms, ...others] = parseQuery(query);
    // The summary of a result begins at one of these words.
    return [text, new Set([...searchTerms, ...parseQuestion(query).flatMap((set) => [...set])]), ...others];
  };
  Search.performTermsSearch = () => findResults(question);
};

var Scorer = {
  /* A heading equal to the question comes first. */
  score: ([, title, , , score, , kind]) => {
    if (kind !== "title") return score;
    const query = new URLSearchParams(window.location.search).get("q") ?? "";
    const findWords = (text) => splitQuery(text.toLowerCase()).join(" ");
    return score + (findWords(query) === findWords(title.split(" > ").pop()) ? 80 : 0);
  },

  // The defaults of Sphinx, which a scorer of one's own has to repeat.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

extendSearch();
