// Formulas in the text cannot break: those wider than their column get the class "wide" and scroll.
addEventListener("load", async () => {
  await window.MathJax?.startup?.promise
  const formulas = document.querySelectorAll(".bd-article mjx-container:not([display])")
  const mark = () => {
    for (const formula of formulas) {
      formula.classList.remove("wide")
      const block = formula.closest("p, li, td, th, dd, dt, figcaption, h1, h2, h3, h4, .admonition-title")
      const style = block && getComputedStyle(block)
      const room = block && block.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)
      if (block && block.clientWidth > 0 && formula.getBoundingClientRect().width > room) formula.classList.add("wide")
    }
  }
  mark()
  addEventListener("resize", mark)
})
