// The search page: sections that hold every word asked for, or a synonym of it, best first. Whole words only.

// Each line names one thing; a query that holds one of the phrases finds the others. (Spelling and plurals: see "stem".)
const synonyms = [
  ["rope", "rotary", "rotary positions", "rotary position embedding", "rotary embeddings"],
  ["gqa", "grouped queries", "grouped-query attention", "grouped query", "mqa", "multi-query attention", "kv_heads", "key-value heads"],
  ["kv cache", "key-value cache", "latent attention"],
  ["mla", "latent attention"],
  ["qk norm", "qk-norm", "qknorm", "normalised keys", "query-key normalisation", "cosine attention"],
  ["head dimension", "head size", "head dim", "head_dim", "head width", "d_head", "d_h", "dk", "d_k"],
  ["sequence length", "context length", "context window", "number of tokens"],
  ["barrier", "0.63", "0.632", "63%", "1-1/e", "1 - 1/e", "ceiling"],
  ["hardmax", "argmax", "hard attention"],
  ["mha", "multi-head attention", "several heads"],
  ["vit", "vision transformer"],
  ["llm", "language model"],
  ["svd", "singular values", "singular value decomposition", "spectrum"],
  ["causal mask", "causal", "autoregressive", "decoder"],
  ["sliding window", "local attention", "windows", "window"],
  ["rank collapse", "oversmoothing", "over-smoothing", "depth"],
  ["gpu", "cuda"],
  ["low rank bottleneck", "bottleneck", "ranks of other matrices"],
  ["low rank", "low-rank approximation", "linformer", "nystromformer", "performer", "approximation methods"],
  ["temperature", "scaling of the scores", "1/sqrt(d)"],
  ["nuclear norm", "trace norm"],
  ["lasso", "group lasso", "token sparsity", "sparsity"],
  ["duality gap", "gap that anybody can check"],
  ["lognormal", "log-normal"],
  ["pretrained", "pre-trained", "after training", "trained models"],
  ["precision", "float16", "bfloat16", "half precision", "float32"],
  ["positional encoding", "position embedding", "positions"],
  ["install", "installation", "pip install"],
  ["random features", "random weights", "initialisation", "init"],
  ["grokking", "delayed generalisation", "modular division", "modular arithmetic"],
  ["distillation", "student", "teacher", "student of a text model"],
  ["svm", "support vector machine", "max-margin", "margin"],
  ["bpe", "byte-pair encoding", "subwords", "tokenizer"],
  ["pruning", "truncation", "compression", "cutting down"],
  ["linear attention", "linear self-attention"],
  ["whitening", "whitened", "whitened tokens", "orthonormal tokens nearest"],
  ["not reproduced", "did not reproduce", "not reproduce", "could not be reproduced", "replication", "what fell", "irreproducible"],
  ["how long", "running time", "runtime", "costs", "what it takes"],
  ["d_qk", "qk_dim", "query-key dimension"],
  ["log n", "growth"],
  ["cross attention", "encoder-decoder"],
  ["tied weights", "weight tying", "shared weights"],
  ["embedding dimension", "embedding size", "d_model", "width"],
  ["seeds", "repetitions"],
  ["flash attention", "fused attention", "scaled_dot_product_attention"],
  ["hugging face", "huggingface"],
  ["my own model", "your own model", "model of your own", "whole model"],
  ["measure", "probe", "attnrank.probe"],
]
const skipped = new Set(
  "a about an and any are as at be by can did do does for from has have how i if in into is it its many much my of on or should that the there this to what when where which why will with you your".split(" "),
)
const spelling = [[/iz(e|ed|es|ing|ation|ations)$/, "is$1"], [/yz(e|ed|es|ing)$/, "ys$1"], [/avior/, "aviour"], [/^color/, "colour"]]

function stem(word) {
  for (const [american, british] of spelling) word = word.replace(american, british)
  if (word.length > 4 && /ies$/.test(word)) return word.slice(0, -3) + "y"
  if (word.length > 3 && /[^su]s$/.test(word)) return word.slice(0, -1)
  return word
}

// Words with their places; "qk-norm" is two words, "d_h" and "0.63" are one.
function words(text) {
  const found = []
  for (const match of text.toLowerCase().matchAll(/[\p{L}\p{N}]+(?:[_.][\p{L}\p{N}]+)*%?/gu))
    found.push({ stem: stem(match[0]), start: match.index, end: match.index + match[0].length })
  return found
}
const stems = text => words(text).map(word => word.stem)

// Places where the phrase begins; a phrase matches word by word.
function places(text, phrase) {
  const found = []
  for (let i = 0; i + phrase.length <= text.length; i++)
    if (phrase.every((stem, j) => text[i + j].stem === stem)) found.push(i)
  return found
}

const groups = synonyms.map(group => group.map(stems).filter(phrase => phrase.length))

// What a query asks for: a list of things, each a list of phrases of which one must be found.
function things(query) {
  let rest = stems(query)
  const asked = []
  const starts = phrase => rest.findIndex((_, i) => phrase.every((stem, j) => rest[i + j] === stem))
  for (const length of [4, 3, 2, 1])
    for (const group of groups)
      for (const phrase of group) {
        if (phrase.length !== length || starts(phrase) < 0) continue
        const at = starts(phrase)
        rest = [...rest.slice(0, at), "", ...rest.slice(at + length)]
        asked.push({ own: phrase, phrases: [phrase, ...group.filter(other => other !== phrase)] })
      }
  for (const stem of rest) if (stem && !skipped.has(stem)) asked.push({ own: [stem], phrases: [[stem]] })
  return asked
}

function records() {
  return Object.values(window.bookSections).flat().map(section => ({
    ...section, heading: words(section.title), above: words(section.page), body: words(section.text),
    factor: /bibliography/.test(section.address) ? 0.3 : 1, // titles of papers come after what the book says
  }))
}

// A word in the heading counts most, then in the title of the page, then in the text, where those of a long list (the
// claims) count half; a synonym counts a little less.
function score(section, thing) {
  let best = 0
  for (const phrase of thing.phrases) {
    const weight = phrase === thing.own ? 1 : 0.7
    const inHeading = places(section.heading, phrase).length > 0
    const inPage = places(section.above, phrase).length > 0
    const inText = places(section.body, phrase).length
    const share = inHeading ? phrase.length / section.heading.length : 0
    const often = Math.log2(1 + inText) * (section.body.length > 2000 ? 0.5 : 1)
    best = Math.max(best, section.factor * weight * (6 * inHeading + 4 * share + 2 * inPage + often))
  }
  return best
}

// Sections that hold all that was asked for; where none does, those that hold most.
function search(query, sections) {
  const asked = things(query)
  if (!asked.length) return { asked, complete: true, found: [] }
  const scored = sections.map(section => {
    const each = asked.map(thing => score(section, thing))
    return { section, held: each.filter(value => value > 0).length, total: each.reduce((a, b) => a + b, 0) }
  })
  const most = Math.max(...scored.map(each => each.held))
  const found = most ? scored.filter(each => each.held === most).sort((a, b) => b.total - a.total) : []
  return { asked, complete: most === asked.length, found: found.slice(0, 30) }
}

// Some words around the first place where something asked for stands, the places marked.
function snippet(section, asked) {
  const marks = []
  for (const thing of asked)
    for (const phrase of thing.phrases)
      for (const i of places(section.body, phrase))
        marks.push([section.body[i].start, section.body[i + phrase.length - 1].end])
  marks.sort((a, b) => a[0] - b[0])
  const text = section.text
  const first = marks.length ? marks[0][0] : 0
  const from = first < 80 ? 0 : text.indexOf(" ", first - 80) + 1
  const space = text.lastIndexOf(" ", from + 240)
  const to = text.length <= from + 240 ? text.length : space > first ? space : from + 240
  const line = document.createElement("p")
  let at = from
  if (from > 0) line.append("… ")
  for (const [start, end] of marks) {
    if (start < at || end > to) continue
    line.append(text.slice(at, start))
    line.append(Object.assign(document.createElement("mark"), { textContent: text.slice(start, end) }))
    at = end
  }
  line.append(text.slice(at, to), to < text.length ? " …" : "")
  return line
}

function show(query, sections) {
  const { asked, complete, found } = search(query, sections)
  const summary = document.getElementById("search-summary")
  if (!query.trim()) summary.textContent = ""
  else if (!found.length) summary.textContent = "Nothing found. Try another word for it, or fewer words."
  else {
    const count = `${found.length} section${found.length > 1 ? "s" : ""}`
    summary.textContent = complete ? count : `No section holds all of these words. ${count} with some of them`
  }
  document.getElementById("search-results").replaceChildren(...found.map(({ section }) => {
    const item = document.createElement("li")
    const link = Object.assign(document.createElement("a"), { href: section.address, textContent: section.title })
    item.append(link)
    if (section.page !== section.title)
      item.append(Object.assign(document.createElement("span"), { className: "search-page", textContent: section.page }))
    if (section.text) item.append(snippet(section, asked))
    return item
  }))
}

addEventListener("DOMContentLoaded", () => {
  const sections = records()
  const input = document.querySelector("article form.bd-search input")
  input.value = new URLSearchParams(location.search).get("q") || ""
  show(input.value, sections)
  input.focus()
  const address = () => history.replaceState(null, "", `?q=${encodeURIComponent(input.value)}`)
  input.addEventListener("input", () => { show(input.value, sections); address() })
  input.form.addEventListener("submit", event => { event.preventDefault(); show(input.value, sections); address() })
})
