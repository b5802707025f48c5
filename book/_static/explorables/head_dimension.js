// Explorable: what a sequence length and a head dimension allow, on the curve of the collapse.
"use strict"
{
  const data = () => Explorables.data.head_dimension
  const { chebyshev, place } = Explorables
  // Bound / n, the normal quantile of 1 - 1/n and the saturated head dimension: polynomials of the logarithms.
  const polynomial = (rows, n, d_h, range) => chebyshev(rows.map(row => chebyshev(row, place(d_h, range))), place(n, data().lengths))
  // Under a causal mask: the logarithm of what the limit for large heads exceeds it by; head dimension 1 has a closed form.
  const line = n => { let total = 1; for (let i = n; i > 1; i--) total += (2 - 2 ** (2 - i)) / i; return total / n }
  const bound = (n, d_h, causal) => !causal ? polynomial(data().bound, n, d_h, data().head_dims)
    : d_h === 1 ? line(n) : Explorables.barrier(n, true) / n - Math.exp(polynomial(data().causal.loss, n, d_h, data().causal.head_dims))
  const quantile = n => chebyshev(data().quantile, place(n, data().lengths))
  // Under a causal mask by halving; the least real head dimension from 2 on, or 1.
  const halved = (n, gap) => {
    const fits = d => Explorables.barrier(n, true) / n - bound(n, d, true) <= gap
    if (fits(1)) return 1
    let [low, high] = data().causal.head_dims
    for (let i = 0; i < 50 && !fits(low); i++) {
      const middle = Math.sqrt(low * high)
      if (fits(middle)) high = middle
      else low = middle
      if (high / low < 1 + 1e-9) break
    }
    return fits(low) ? low : high
  }
  const saturation = (n, gap, causal) => causal ? halved(n, Number(gap))
    : Math.max(1, Math.exp(chebyshev(data().saturation[gap], place(n, data().lengths))))
  const needed = d => Math.ceil(d - 1e-3).toLocaleString("en")

  Explorables.kinds.head_dimension = {
    title: "Calculate: what a head dimension allows",
    start: () => ({ model: data().models[0].name, n: data().models[0].n, d_h: data().models[0].d_h, mask: data().models[0].causal ? "causal" : "none" }),
    controls: () => [
      { key: "model", label: "Model", options: [["", "own numbers"], ...data().models.map(({ name }) => [name, name])] },
      { key: "n", label: `Tokens n (${data().lengths.map(n => n.toLocaleString("en")).join(" to ")})`, least: data().lengths[0], most: data().lengths[1] },
      { key: "d_h", label: `Head dimension (${data().head_dims.map(d => d.toLocaleString("en")).join(" to ")})`, least: data().head_dims[0], most: data().head_dims[1] },
      { key: "mask", label: "Mask", options: [["none", "none"], ["causal", "causal"]] },
    ],
    changed: (state, key) => {
      const model = data().models.find(({ name }) => name === state.model)
      if (key === "model" && model) [state.n, state.d_h, state.mask] = [model.n, model.d_h, model.causal ? "causal" : "none"]
      if (key !== "model" && model && (model.n !== state.n || model.d_h !== state.d_h || model.causal !== (state.mask === "causal"))) state.model = ""
    },

    compute: ({ n, d_h, mask }) => {
      const causal = mask === "causal"
      const barrier = Explorables.barrier(n, causal) / n, found = bound(n, d_h, causal), v = quantile(n) ** 4 / (2 * d_h)
      return {
        bound: found, barrier, loss: barrier - found, v, limit: Explorables.limit(v, causal),
        saturation: Object.fromEntries(Object.keys(data().saturation).map(gap => [gap, saturation(n, gap, causal)])),
      }
    },

    setup: picture => {
      const { make } = Explorables
      picture.svg = make("svg", { viewBox: "0 0 640 280", role: "img", "aria-label": "The curve of the collapse and the place of this head on it; the text below gives the numbers" })
      picture.append(make("div", {}, picture.svg))
      picture.classList.add("explorable-wide")
    },

    draw: (picture, { n, d_h, mask }, { bound, barrier, v, saturation }) => {
      const { make } = Explorables, { svg } = picture
      const [left, right, top, bottom] = [56, 600, 16, 224], ends = [0.005, 400]
      const x = v => left + (right - left) * Math.log(Math.min(Math.max(v, ends[0]), ends[1]) / ends[0]) / Math.log(ends[1] / ends[0])
      const y = share => bottom - (bottom - top) * share / 0.7
      const curve = Array.from({ length: 81 }, (_, i) => ends[0] * (ends[1] / ends[0]) ** (i / 80))
      const mark = Object.entries(saturation).map(([gap, d]) => {
        const at = x(v * d_h / d), height = y(barrier - Number(gap))
        return make("g", {}, make("path", { class: "tickmark", d: `M${at} ${height - 7}V${height + 7}` }),
          make("text", { class: "note", x: at - 6, y: height + 19, "text-anchor": "end" }, `gap ${gap}`))
      })
      svg.replaceChildren(
        make("path", { class: "axis", d: `M${left} ${top}V${bottom}H${right}` }),
        ...[0, 0.2, 0.4, 0.6].map(share => make("text", { class: "tick", x: left - 8, y: y(share) + 4, "text-anchor": "end" }, String(share))),
        ...[0.01, 0.1, 1, 10, 100].map(value => make("text", { class: "tick", x: x(value), y: bottom + 18, "text-anchor": "middle" }, String(value))),
        make("text", { class: "tick", x: (left + right) / 2, y: bottom + 42, "text-anchor": "middle" }, "v = aₙ⁴ / (2 d_h): larger heads to the left, longer sequences to the right"),
        make("line", { class: "limit", x1: left, x2: right, y1: y(barrier), y2: y(barrier) }),
        make("text", { class: "note", x: right, y: y(barrier) - 5, "text-anchor": "end" }, mask === "causal" ? "limit for large heads / n" : "barrier / n"),
        make("path", { class: "curve", d: "M" + curve.map(v => `${x(v).toFixed(1)} ${y(Explorables.limit(v, mask === "causal")).toFixed(1)}`).join("L") }),
        make("text", { class: "note", x: x(14), y: y(Explorables.limit(14, mask === "causal")) - 8 }, "limit F(v)"),
        ...mark, make("circle", { class: "here", cx: x(v), cy: y(bound), r: 7 }))
    },

    rows: ({ n, mask }, { bound, barrier, loss, saturation }) => [
      ["Bound on the mean rank / n", `${bound.toFixed(3)} (${Math.round(bound * n).toLocaleString("en")} tokens)`, bound, "result"],
      [mask === "causal" ? "Limit for large heads / n" : "Barrier / n", barrier.toFixed(3), barrier, "bound"],
      ["Lost to unequal lengths of keys", loss.toFixed(3), loss, "other"],
      ...Object.entries(saturation).map(([gap, d]) => [`Head dimension for a gap of ${gap}`, needed(d), null]),
    ],

    describe: ({ n, d_h, model, mask }, { bound, barrier, limit, saturation, v }) => {
      const causal = mask === "causal", top = causal ? "limit for large heads" : "barrier"
      return `${model ? `${model}: ` : ""}${n.toLocaleString("en")} tokens, head dimension ${d_h.toLocaleString("en")}. At initialisation a head ${causal ? "with a causal mask" : "without mask"} attends on average to at most `
        + `${(100 * bound).toFixed(1)} % of the tokens; the ${top} is ${(100 * barrier).toFixed(1)} %, the limit curve gives ${(100 * limit).toFixed(1)} % at v = ${v.toPrecision(3)}. `
        + `To come within 0.05 of the ${top} a head needs at least ${needed(saturation["0.05"])} dimensions.`
    },
  }
}
