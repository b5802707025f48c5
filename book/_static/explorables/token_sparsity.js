// Explorable: patches of digits light up as the penalty falls, with a certificate that is computed here.
"use strict"
{
  const data = () => Explorables.data.token_sparsity

  const exponential = gap => gap > 0 ? gap.toExponential(0) : "less than rounding shows"

  Explorables.kinds.token_sparsity = {
    title: "Explore: which patches stay",
    start: () => ({ at: 12, digit: "8" }),
    controls: () => [
      { key: "at", label: "Penalty", values: data().path.map((_, at) => at), show: at => `β = ${data().path[at].share.toFixed(3)} β_max` },
      { key: "digit", label: "Digit shown", options: Object.keys(data().digits).map(digit => [digit, digit]) },
    ],

    // Of the program only the sums X'X, X'y and y'y are needed: objective, dual objective and the correlation of each
    // patch with the residual, whose norm is beta where a patch is active and at most beta elsewhere.
    compute: ({ at }) => {
      const { gram, moments, square, side, beta_max, path } = data(), { share, z, accuracy } = path[at]
      const beta = share * beta_max, size = side * side, patches = z.length / size, { gramOf } = Explorables.kinds.token_sparsity
      const fitted = gramOf(gram, z), norms = [], correlations = []
      let crossed = 0, quadratic = 0
      z.forEach((value, i) => { crossed += value * moments[i]; quadratic += value * fitted[i] })
      for (let k = 0; k < patches; k++) {
        const own = [...Array(size).keys()].map(i => k * size + i)
        norms.push(Math.hypot(...own.map(i => z[i])))
        correlations.push(Math.hypot(...own.map(i => moments[i] - fitted[i])))
      }
      const primal = square / 2 - crossed + quadratic / 2 + beta * norms.reduce((a, b) => a + b, 0)
      const scale = Math.min(1, beta / Math.max(...correlations)), residual = square - 2 * crossed + quadratic
      const dual = scale * (square - crossed) - scale * scale * residual / 2
      return { beta, norms, correlations, primal, dual, gap: primal - dual, active: norms.filter(norm => norm > 0).length, accuracy }
    },
    // The product of a symmetric matrix, stored as the rows of its lower half, with a vector.
    gramOf: (gram, z) => {
      const found = new Float64Array(z.length)
      for (let i = 0, at = 0; i < z.length; i++) for (let j = 0; j <= i; j++, at++) {
        found[i] += gram[at] * z[j]
        if (j < i) found[j] += gram[at] * z[i]
      }
      return found
    },

    setup: picture => {
      const { make } = Explorables
      picture.view = make("svg", { viewBox: "0 0 328 328", class: "digit", role: "img", "aria-label": "The digit, seen through the active patches; the text below lists them" })
      picture.bars = make("svg", { viewBox: "0 0 360 300", class: "certificate", role: "img", "aria-label": "Correlation of each patch with the residual, against beta; the text below summarises it" })
      picture.append(make("div", {}, picture.view), make("div", {}, picture.bars))
    },

    draw: (picture, { digit }, { norms, correlations, beta }) => {
      const { make } = Explorables, { view, bars } = picture, { side } = data()
      const pixels = data().digits[digit], cell = 40, across = Math.sqrt(pixels.length), wide = across / side
      view.replaceChildren(...pixels.flatMap((value, i) => {
        const [row, column] = [Math.floor(i / across), i % across], patch = Math.floor(row / side) * wide + Math.floor(column / side)
        const seen = norms[patch] > 0
        return [make("rect", { x: 4 + column * cell, y: 4 + row * cell, width: cell + 0.5, height: cell + 0.5, class: seen ? "lit" : "dark", "fill-opacity": seen ? 0.04 + 0.96 * value : 0.14 * value })]
      }), ...norms.map((norm, k) => make("rect", { x: 4 + (k % wide) * side * cell, y: 4 + Math.floor(k / wide) * side * cell, width: side * cell, height: side * cell, class: norm > 0 ? "frame lit" : "frame" })))
      const [left, bottom, top] = [40, 262, 14], most = Math.max(beta, ...correlations), y = value => bottom - (bottom - top) * value / (1.08 * most)
      const width = 310 / norms.length
      bars.replaceChildren(
        make("path", { class: "axis", d: `M${left} ${top}V${bottom}H350` }),
        ...correlations.map((value, k) => make("rect", { class: norms[k] > 0 ? "bar lit" : "bar", x: left + k * width + 2, y: y(value), width: width - 4, height: Math.max(0, bottom - y(value)) })),
        make("line", { class: "limit", x1: left, x2: 350, y1: y(beta), y2: y(beta) }),
        make("text", { class: "note", x: 346, y: y(beta) - 5, "text-anchor": "end" }, "β"),
        make("text", { class: "tick", x: left - 6, y: bottom + 4, "text-anchor": "end" }, "0"),
        make("text", { class: "tick", x: 195, y: 288, "text-anchor": "middle" }, "patches: correlation with the residual"))
    },

    rows: (_, { primal, dual, gap, active, norms, accuracy }) => [
      ["Active patches", `${active} of ${norms.length}`, active / norms.length, "result"],
      ["Test accuracy, digits from 5 against below", accuracy.toFixed(3), accuracy, "other"],
      ["Objective", primal.toFixed(6), null],
      ["Certified from below by", dual.toFixed(6), null],
      ["Gap", exponential(gap), null],
    ],

    describe: ({ at, digit }, { active, norms, gap, primal, accuracy, beta }) => {
      const lit = norms.flatMap((norm, k) => norm > 0 ? [k + 1] : [])
      const share = `At β = ${data().path[at].share.toFixed(3)} β_max`, right = `The classifier is right on ${(100 * accuracy).toFixed(1)} % of the test digits. `
      const certified = `so the objective ${primal.toPrecision(6)} is within ${gap > 0 ? exponential(gap) : "rounding"} of the least possible.`
      if (active === 0) return `${share} no patch of ${norms.length} is active, and the digit stays dark. ${right}`
        + `No patch correlates with the residual by more than β = ${beta.toPrecision(3)}; ${certified}`
      return `${share}, ${active === 1 ? `patch ${lit[0]} is` : `patches ${lit.join(", ")} are`} active, of ${norms.length}, counted row by row; `
        + `${digit === "8" ? "an" : "a"} ${digit} is shown through them. ${right}`
        + `Active patches correlate with the residual by exactly β = ${beta.toPrecision(3)}, the others by less; ${certified}`
    },
  }
}
