// The numbers behind the explorables: pure functions, which a test compares with the Python package.
"use strict"
const Explorables = { data: window.EXPLORABLES_DATA, kinds: {} }
window.Explorables = Explorables

// Uniform numbers in [0, 1), multiples of 2^-32, from a seed (mulberry32).
Explorables.uniforms = seed => {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let t = Math.imul(state ^ (state >>> 15), state | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

// Standard normal numbers, two for each two uniform ones (Box and Muller).
Explorables.normals = (seed, count) => {
  const uniform = Explorables.uniforms(seed), found = new Float64Array(count + (count % 2))
  for (let i = 0; i < count; i += 2) {
    const radius = Math.sqrt(-2 * Math.log(1 - uniform())), angle = 2 * Math.PI * uniform()
    found[i] = radius * Math.cos(angle)
    found[i + 1] = radius * Math.sin(angle)
  }
  return found.subarray(0, count)
}

// Attention of n queries on n keys: weights row by row, and the key of the largest score of each query.
Explorables.attend = (q, k, n, d, temperature, causal) => {
  const weights = new Float64Array(n * n), chosen = new Int32Array(n), scores = new Float64Array(n)
  for (let i = 0; i < n; i++) {
    const seen = causal ? i + 1 : n
    let best = 0
    for (let j = 0; j < seen; j++) {
      let score = 0
      for (let l = 0; l < d; l++) score += q[i * d + l] * k[j * d + l]
      scores[j] = score
      if (score > scores[best]) best = j
    }
    chosen[i] = best
    if (temperature === 0) { weights[i * n + best] = 1; continue }
    let total = 0
    for (let j = 0; j < seen; j++) total += weights[i * n + j] = Math.exp((scores[j] - scores[best]) / temperature)
    for (let j = 0; j < seen; j++) weights[i * n + j] /= total
  }
  return { weights, chosen }
}

// Singular values of an n x n matrix, largest first: rows are turned against each other until they are orthogonal
// (one-sided Jacobi). Rows shorter than 1e-13 of the matrix are left alone: they are below every tolerance offered.
Explorables.singularValues = (matrix, n) => {
  const a = Float64Array.from(matrix)
  let square = 0
  for (const x of a) square += x * x
  const floor = square * 1e-26
  for (let sweep = 0, turned = true; turned && sweep < 60; sweep++) {
    turned = false
    for (let i = 0; i < n - 1; i++) for (let j = i + 1; j < n; j++) {
      let x = 0, y = 0, z = 0
      for (let l = 0, p = i * n, r = j * n; l < n; l++, p++, r++) { x += a[p] * a[p]; y += a[r] * a[r]; z += a[p] * a[r] }
      if (Math.min(x, y) <= floor ? z * z <= floor * Math.max(x, y) * 1e-6 : Math.abs(z) <= 1e-15 * Math.sqrt(x * y)) continue
      turned = true
      const zeta = (y - x) / (2 * z), t = (zeta < 0 ? -1 : 1) / (Math.abs(zeta) + Math.sqrt(1 + zeta * zeta))
      const c = 1 / Math.sqrt(1 + t * t), s = c * t
      for (let l = 0, p = i * n, r = j * n; l < n; l++, p++, r++) {
        const u = a[p], v = a[r]
        a[p] = c * u - s * v
        a[r] = s * u + c * v
      }
    }
  }
  const values = new Float64Array(n)
  for (let i = 0; i < n; i++) { let x = 0; for (let l = 0; l < n; l++) x += a[i * n + l] ** 2; values[i] = Math.sqrt(x) }
  return values.sort().reverse()
}

// The barrier n (1 - (1 - 1/n)^n), and (n + 1) / 2 under a causal mask.
Explorables.barrier = (n, causal) => causal ? (n + 1) / 2 : -n * Math.expm1(n * Math.log1p(-1 / n))

// Indices of the corners of the convex hull, counterclockwise; points on an edge are none, and of equal points the first
// is one (monotone chain).
Explorables.hull = points => {
  const places = points.map(String), order = points.map((_, i) => i).filter(i => places.indexOf(places[i]) === i)
  order.sort((i, j) => points[i][0] - points[j][0] || points[i][1] - points[j][1])
  const left = (i, j, k) => (points[j][0] - points[i][0]) * (points[k][1] - points[i][1])
    - (points[j][1] - points[i][1]) * (points[k][0] - points[i][0])
  const chain = order => {
    const found = []
    for (const k of order) {
      while (found.length > 1 && left(found.at(-2), found.at(-1), k) <= 1e-12) found.pop()
      found.push(k)
    }
    return found.slice(0, -1)
  }
  return order.length < 3 ? order : [...chain(order), ...chain(order.reverse())]
}

// A polynomial in Chebyshev form, coefficients of rising degree, at x in [-1, 1].
Explorables.chebyshev = (coefficients, x) => {
  let b1 = 0, b2 = 0
  for (let i = coefficients.length - 1; i > 0; i--) [b1, b2] = [coefficients[i] + 2 * x * b1 - b2, b1]
  return coefficients[0] + x * b1 - b2
}

// Where log x stands between the logarithms of the ends of a range, from -1 to 1.
Explorables.place = (x, [low, high]) => 2 * Math.log(x / low) / Math.log(high / low) - 1

// F(v) of the collapse: E[1 - exp(-Y)], Y log-normal of mean 1 whose logarithm has variance v; causal, E[Y / (1 + Y)].
Explorables.limit = (v, causal) => {
  const sigma = Math.sqrt(v), reach = -sigma / 2 + Math.sqrt(v / 4 + 90), step = Math.min(0.4, 0.3 / Math.max(sigma, 1e-9))
  let total = 0
  for (let i = -Math.ceil(reach / step); i <= Math.ceil(reach / step); i++) {
    const y = Math.exp(Math.min(sigma * step * i, 700))
    total += (causal ? y / (1 + y) : -Math.expm1(-y)) * Math.exp(-((step * i + sigma / 2) ** 2) / 2)
  }
  return step * total / Math.sqrt(2 * Math.PI)
}
