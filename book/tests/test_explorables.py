"""The explorables: their scripts compute what the package computes, and they are moved by keyboard, with their text."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import explorables
import numpy as np
import pytest
import torch
from docutils.utils import new_document
from playwright.sync_api import Locator
from scipy.spatial import ConvexHull

import attnrank
import browsing
from attnrank import convex, sweep, theory
from attnrank.experiments import token_sparsity
from attnrank.experiments.upkeep import explorables as source
from attnrank.sweep import results_folder

STATES = 200
PAGE = """<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>Explorables</title>
<link rel="stylesheet" href="{static}/book.css"><link rel="stylesheet" href="{static}/explorables/explorables.css">
<script>document.documentElement.classList.add("scripts");window.EXPLORABLES_DATA={data}</script>{scripts}</head>
<body><article class="bd-article">{places}</article></body></html>"""
DATA = json.loads((explorables.STATIC / "data.json").read_text(encoding="utf-8"))


def all_on_one_page(root: Path) -> str:
    static = (root / "book" / "_static").as_uri()
    names = [*explorables.SCRIPTS, *(f"{kind}.js" for kind in explorables.KINDS)]
    return PAGE.format(
        static=static,
        data=json.dumps(DATA),
        scripts="".join(f'<script defer src="{static}/explorables/{name}"></script>' for name in names),
        places="".join(f'<div class="explorable" data-explorable="{kind}"></div>' for kind in explorables.KINDS),
    )


@pytest.fixture(scope="module")
def tab(browser: browsing.Browser, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browsing.Page]:
    page = tmp_path_factory.mktemp("explorables") / "page.html"
    page.write_text(all_on_one_page(root), encoding="utf-8")
    opened = browsing.tab_of(browser, **browsing.MODES["light"])
    opened.goto(page.as_uri(), wait_until="load")
    assert opened.locator(".explorable-ready").count() == len(explorables.KINDS)
    yield opened
    opened.context.close()


def computed(tab: browsing.Page, kind: str, states: list[dict], keys: str) -> list[dict]:
    """What the script of an explorable computes for each of the states, ``keys`` of it."""
    return tab.evaluate(
        """([kind, states, keys]) => states.map(state => {
            const found = Explorables.kinds[kind].compute(state)
            return Object.fromEntries(keys.map(key => [key, ArrayBuffer.isView(found[key]) ? [...found[key]]
                : found[key] instanceof Set ? [...found[key]] : found[key]]))
        })""",
        [kind, states, keys.split()],
    )


class TestTheScriptsAgreeWithThePackage:
    def test_random_numbers(self, tab) -> None:
        for seed in (0, 1, 999, 2**32 - 1):
            found = tab.evaluate("seed => [...Explorables.normals(seed, 501)]", seed)
            assert np.allclose(found, source.normals(seed, 501), rtol=0, atol=1e-12)

    def test_attention(self, tab) -> None:
        generator = np.random.default_rng(1)
        options = {"n": source.LENGTHS, "d_h": source.HEAD_DIMS, "temperature": source.TEMPERATURES,
                   "tolerance": source.TOLERANCES, "mask": ("none", "causal")}  # fmt: skip
        states = [
            {key: values[generator.integers(len(values))] for key, values in options.items()}
            | {"seed": int(generator.integers(1000))}
            for _ in range(STATES)
        ]
        keys = "rank numericalRank values bound barrier attended"
        for state, found in zip(states, computed(tab, "attention", states, keys)):
            n, d_h, causal = state["n"], state["d_h"], state["mask"] == "causal"
            q, k = torch.from_numpy(source.normals(state["seed"], 2 * n * d_h)).view(2, n, d_h)
            temperature = state["temperature"] * math.sqrt(d_h)
            a = attnrank.attention(q, k, temperature=temperature or 1.0, causal=causal, hard=temperature == 0)
            assert found["rank"] == attnrank.hardmax_rank(q, k, causal=causal).item()
            assert np.allclose(found["values"], np.linalg.svd(a.numpy(), compute_uv=False), rtol=0, atol=1e-11)
            assert found["numericalRank"] == attnrank.numerical_rank(a, state["tolerance"]).item()
            hard = attnrank.attention(q, k, causal=causal, hard=True)
            assert sorted(found["attended"]) == hard.sum(0).nonzero()[:, 0].tolist()
            assert found["barrier"] == pytest.approx(theory.causal_limit(n) if causal else theory.occupancy_bound(n))
            if not causal:
                assert found["bound"] == pytest.approx(theory.head_dim_bound(n, d_h), rel=1e-8)

    def test_a_causal_bound_is_that_of_the_package(self) -> None:
        stored = np.array(DATA["attention"]["bounds"]["causal"])
        again = theory.causal_head_dim_bound(source.LENGTHS[2], source.HEAD_DIMS[4])
        assert stored[2, 4] == pytest.approx(again, rel=1e-8)
        limits = [[theory.causal_limit(n)] for n in source.LENGTHS]
        assert (np.diff(stored, axis=0) > 0).all() and (np.diff(stored, axis=1) > 0).all() and (stored < limits).all()

    def test_the_plane(self, tab) -> None:
        generator = np.random.default_rng(2)
        states = [
            {"keys": generator.standard_normal((int(generator.integers(3, 17)), 2)).round(2).tolist(),
             "angle": 3 * int(generator.integers(120))}
            for _ in range(STATES)
        ]  # fmt: skip
        turns = np.linspace(0, 2 * math.pi, 20_000, endpoint=False) + 1e-5
        around = torch.from_numpy(np.stack([np.cos(turns), np.sin(turns)], axis=1))
        for state, found in zip(states, computed(tab, "plane", states, "corners cells winner never expected")):
            keys, angle = torch.tensor(state["keys"], dtype=torch.float64), math.radians(state["angle"])
            assert sorted(found["corners"]) == sorted(ConvexHull(keys.numpy()).vertices.tolist())
            assert sorted(found["never"] + found["corners"]) == list(range(len(keys)))
            query = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
            assert found["winner"] == attnrank.attention(query, keys, hard=True).argmax().item()
            shares = np.bincount((around @ keys.T).argmax(1).numpy(), minlength=len(keys)) / len(turns)
            own = np.zeros(len(keys))
            for cell in found["cells"]:
                own[cell["key"]] = cell["share"]
            assert np.allclose(own, shares, rtol=0, atol=2 / len(turns))
            assert own.sum() == pytest.approx(1, abs=1e-9)
            assert found["expected"] == pytest.approx((1 - (1 - own) ** len(keys)).sum(), abs=1e-9)

    def test_the_calculator(self, tab) -> None:
        generator = np.random.default_rng(3)
        ends = source.LENGTH_RANGE, source.HEAD_DIM_RANGE
        draw = [[round(low * (high / low) ** u) for u in generator.random(STATES)] for low, high in ends]
        states = [{"n": n, "d_h": d_h, "model": "", "mask": "none"} for n, d_h in zip(*draw)]
        gaps = [f"{gap:g}" for gap in source.GAPS]
        results = computed(tab, "head_dimension", states, "bound barrier v limit saturation")
        for at, (state, found) in enumerate(zip(states, results)):
            n, d_h = state["n"], state["d_h"]
            barrier = theory.occupancy_bound(n) / n
            assert found["barrier"] == pytest.approx(barrier, abs=1e-12)
            assert found["bound"] == pytest.approx(theory.head_dim_bound(n, d_h) / n, abs=1e-6)
            assert found["v"] == pytest.approx(theory.lognormal_variance(n, d_h), rel=1e-6)
            assert found["limit"] == pytest.approx(theory.lognormal_limit(found["v"]), abs=1e-9)
            if at % 4:
                continue  # the saturated head dimension of every fourth state: another evaluation of the bound
            gap = gaps[at // 4 % len(gaps)]
            left = barrier - theory.head_dim_bound(n, found["saturation"][gap]) / n
            assert left == pytest.approx(float(gap), abs=2e-6) or (found["saturation"][gap] == 1 and left < float(gap))

    def test_the_calculator_under_a_causal_mask(self, tab) -> None:
        """Limits at 200 random states; the bound, a second each, at six; head dimensions of the table sizing."""
        generator = np.random.default_rng(5)
        ends = source.LENGTH_RANGE, source.HEAD_DIM_RANGE
        draw = [[round(low * (high / low) ** u) for u in generator.random(STATES)] for low, high in ends]
        states = [{"n": n, "d_h": d_h, "model": "", "mask": "causal"} for n, d_h in zip(*draw)]
        for state, found in zip(states, computed(tab, "head_dimension", states, "bound barrier v limit")):
            assert found["barrier"] == pytest.approx(theory.causal_limit(state["n"]) / state["n"], abs=1e-12)
            assert found["limit"] == pytest.approx(theory.lognormal_limit(found["v"], causal=True), abs=1e-9)
            assert 0 < found["bound"] < found["barrier"]
        cheap = [(16, 1), (100, 1), (40, 2), (100, 5), (300, 20), (1024, 64)]
        states = [{"n": n, "d_h": d_h, "model": "", "mask": "causal"} for n, d_h in cheap]
        for state, found in zip(states, computed(tab, "head_dimension", states, "bound")):
            again = theory.causal_head_dim_bound(state["n"], state["d_h"]) / state["n"]
            assert found["bound"] == pytest.approx(again, abs=5e-4)
        table = sweep.read("sizing", folder=results_folder())
        rows = table[table.kind == "causal"]
        states = [{"n": n, "d_h": 1, "model": "", "mask": "causal"} for n in rows.n.tolist()]
        for gap, d_h, found in zip(rows.gap, rows.d_h, computed(tab, "head_dimension", states, "saturation")):
            assert d_h - 1 - 1e-3 * d_h < found["saturation"][f"{gap:g}"] < d_h + 1e-3 * d_h

    def test_token_sparsity(self, tab) -> None:
        x, labels, _, _ = token_sparsity.split("digits", source.SAMPLES)
        y = token_sparsity.targets("digits", labels, "two")
        y = y - y.mean(0)
        draws = np.random.default_rng(4).permutation(np.arange(STATES) % len(source.SHARES))
        states = [{"at": int(at), "digit": "8"} for at in draws]
        checked: dict[int, tuple] = {}
        keys = "beta norms correlations primal dual gap active"
        for state, found in zip(states, computed(tab, "token_sparsity", states, keys)):
            at = state["at"]
            if at not in checked:
                z = torch.tensor(DATA["token_sparsity"]["path"][at]["z"], dtype=torch.float64).view(16, 4)
                residual = y - convex.predict(x, z)
                correlations = torch.einsum("ikd,i->kd", x, residual).norm(dim=1)
                beta = source.SHARES[at] * convex.beta_max(x, y)
                dual_point = residual * min(1.0, beta / correlations.max().item())
                checked[at] = z, correlations, beta, convex.check(x, y, beta, z, dual_point)
            z, correlations, beta, (primal, dual, *_) = checked[at]
            assert found["beta"] == pytest.approx(beta, rel=1e-9)
            assert np.allclose(found["norms"], z.norm(dim=1), rtol=0, atol=1e-12)
            assert np.allclose(found["correlations"], correlations, rtol=0, atol=1e-7)
            assert found["active"] == int((z.norm(dim=1) > 0).sum())
            assert found["primal"] == pytest.approx(primal, abs=1e-7)
            assert found["dual"] == pytest.approx(dual, abs=1e-7)
            assert -1e-7 <= found["gap"] <= 1e-5 * primal

    def test_a_wrong_number_is_found(self, tab) -> None:
        """Control: a hull that keeps a point inside, and singular values of another matrix."""
        corners = tab.evaluate("Explorables.hull([[0, 0], [1, 0], [0, 1], [0.2, 0.2]])")
        assert sorted(corners) == [0, 1, 2]
        values = tab.evaluate("[...Explorables.singularValues([3, 0, 4, 5], 2)]")
        assert np.allclose(values, [math.sqrt(45), math.sqrt(5)], rtol=0, atol=1e-12)
        assert not np.allclose(values, [math.sqrt(45), math.sqrt(5) + 1e-6], rtol=0, atol=1e-11)


WHAT_A_STATE_SHOWS = """([kind, states]) => states.map(state => {
    const { setup, compute, draw, rows, describe } = Explorables.kinds[kind], picture = document.createElement('div')
    setup(picture, state, () => {})
    const numbers = compute(state)
    draw(picture, state, numbers)
    const drawn = [...picture.querySelectorAll('svg')].map(svg => svg.innerHTML).join()
    return [describe(state, numbers), JSON.stringify(rows(state, numbers)), drawn]
})"""
ENDS = {
    "attention": {"n": (8, 96), "d_h": (1, 256), "temperature": (0, 0.001, 10), "tolerance": (1e-6, 0.5),
                  "mask": ("none", "causal"), "seed": (0, 999)},
    "plane": {"keys": ([[1, 1]] * 3, [[0, 0]] * 16, [[-2.8, 2.8], [2.8, 2.8], [0, -2.8]], [[0, 1], [0, 2], [0, 3]]),
              "angle": (0, 90, 357), "held": (0, 2)},
    "head_dimension": {"n": source.LENGTH_RANGE, "d_h": source.HEAD_DIM_RANGE, "mask": ("none", "causal"),
                       "model": ("",)},
    "token_sparsity": {"at": (0, 1, len(source.SHARES) - 1), "digit": ("8",)},
}  # fmt: skip


@pytest.mark.parametrize("kind", explorables.KINDS)
def test_extreme_states_show_numbers(tab: browsing.Page, kind: str) -> None:
    states = [dict(zip(ENDS[kind], values)) for values in itertools.product(*ENDS[kind].values())]
    for state, shown in zip(states, tab.evaluate(WHAT_A_STATE_SHOWS, [kind, states]), strict=True):
        wrong = [re.search(r"NaN|Infinity|undefined|null %|\b1 tokens|e\+0\b", text) for text in shown]
        assert not any(wrong), (state, wrong, shown[0])
        assert len(shown[0]) > 80


COINCIDENT = [
    ([[1, 1], [1, 1], [1, 1]], [0], [1, 2]),
    ([[2, 0], [-1, 0], [2, 0], [-1, 0]], [0, 1], [2, 3]),
    ([[1, 0], [1, 1], [1, -1]], [1, 2], [0]),  # the first key lies on an edge, and ties at direction 0
    ([[0, 1], [0, 2], [0, 3]], [0, 2], [1]),
    ([[1, 0], [0, 1], [-1, -1], [0, 1], [1, 0], [0, 0]], [0, 1, 2], [3, 4, 5]),
]


@pytest.mark.parametrize(("keys", "corners", "never"), COINCIDENT)
def test_keys_on_one_another_and_on_a_line(tab: browsing.Page, keys: list, corners: list, never: list) -> None:
    """The first of equal keys wins, as in argmax; shares of the directions add up; no key wins that cannot."""
    states = [{"keys": keys, "angle": angle, "held": 0} for angle in (0, 45, 90, 180, 270, 357)]
    for state, found in zip(states, computed(tab, "plane", states, "corners cells winner never")):
        assert sorted(found["corners"]) == corners and found["never"] == never
        assert sum(cell["share"] for cell in found["cells"]) == pytest.approx(1, abs=1e-12)
        x, y = math.cos(math.radians(state["angle"])), math.sin(math.radians(state["angle"]))
        scores = [a * x + b * y for a, b in keys]
        assert found["winner"] in corners and scores[found["winner"]] == pytest.approx(max(scores), abs=1e-12)


def test_the_numbers_are_those_that_the_package_writes() -> None:
    """The sums of the digits, and two solutions; bounds and polynomials are compared with the package above."""
    few = source.SHARES[8], source.SHARES[20]
    stored, again = copy.deepcopy(DATA["token_sparsity"]), source.token_sparsity_numbers(few)
    path = stored.pop("path")
    assert [solution["share"] for solution in path] == list(source.SHARES)
    for one, other in zip([each for each in path if each["share"] in few], again.pop("path"), strict=True):
        assert np.allclose(one.pop("z"), other.pop("z"), rtol=0, atol=1e-6)
        assert one == other
    assert stored.keys() == again.keys()
    for key, value in stored.items():
        if key == "digits":
            assert value == {digit: pytest.approx(pixels) for digit, pixels in again[key].items()}
        else:
            assert np.allclose(value, again[key], rtol=1e-9, atol=1e-9), key


def test_a_page_has_the_numbers_and_the_scripts_of_its_explorables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind once, in the order of the page, behind the scripts that all share; no number ends the script."""
    numbers = {"plane": {"a": "</script>"}, "attention": {"b": [1, 2]}, "token_sparsity": {"c": 3}}
    monkeypatch.setattr(explorables, "read", lambda name: numbers)
    scripts: list[tuple[str | None, dict]] = []
    styles: list[str] = []
    app = SimpleNamespace(add_js_file=lambda name, **given: scripts.append((name, given)), add_css_file=styles.append)
    explorables.add_scripts(app, "page", "", {}, None)  # type: ignore[arg-type]
    page = new_document("page")
    explorables.add_scripts(app, "page", "", {}, page)  # type: ignore[arg-type]
    assert scripts == styles == []
    page += [explorables.Place(kind=kind) for kind in ("plane", "attention", "plane", "head_dimension")]
    explorables.add_scripts(app, "page", "", {}, page)  # type: ignore[arg-type]
    (_, first), *rest = scripts
    data = first["body"].partition("window.EXPLORABLES_DATA=")[2]
    assert "<" not in data and json.loads(data) == {
        "plane": {"a": "</script>"}, "attention": {"b": [1, 2]}, "head_dimension": {},
    }  # fmt: skip
    assert first["body"].startswith('document.documentElement.classList.add("scripts");')
    names = ("numbers", "page", "plane", "attention", "head_dimension")
    assert rest == [(f"explorables/{name}.js", {"defer": "defer"}) for name in names]
    assert styles == ["explorables/explorables.css"]


def pages_of(site: Path) -> dict[str, list[str]]:
    """The explorables of every page that has some."""
    found = {}
    for page in sorted(site.rglob("*.html")):
        if kinds := re.findall(r'data-explorable="(\w+)"', page.read_text(encoding="utf-8")):
            found[page.relative_to(site).as_posix()] = kinds
    return found


def test_every_explorable_has_its_page(site: Path) -> None:
    pages = pages_of(site)
    assert {kind for kinds in pages.values() for kind in kinds} == set(explorables.KINDS)
    assert "attention" in pages["book/index.html"]
    assert all(len(kinds) == len(set(kinds)) for kinds in pages.values())


#: The controls of each explorable.
MOVES = {
    "attention": ["n", "d_h", "temperature", "tolerance", "mask", "seed"],
    "plane": ["angle", "count", "seed", "key"],
    "head_dimension": ["model", "n", "d_h", "mask"],
    "token_sparsity": ["at", "digit"],
}


def moved(tab: browsing.Page, kind: str, control: str) -> list[str]:
    """Reach a control of an explorable and press an arrow key: what of picture and text did not follow."""
    place = tab.locator(f'[data-explorable="{kind}"]')
    look = """e => [e.querySelector('.explorable-description').textContent,
        [...e.querySelectorAll('.explorable-picture svg')].map(svg => svg.innerHTML).join()
        + [...e.querySelectorAll('canvas')].map(canvas => canvas.toDataURL()).join()]"""
    before = place.evaluate(look)
    place.locator('[data-key="2"]' if control == "key" else f"#{kind}-{control}").focus()
    tab.keyboard.press("ArrowUp" if control in ("seed", "key", "temperature") else "ArrowDown")
    tab.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    after = place.evaluate(look)
    looks = zip(("text", "picture"), before, after)
    return [f"{kind} {control}: {what} stayed" for what, old, new in looks if old == new]


def opened(tab: browsing.Page, site: Path) -> Iterator[tuple[str, Locator]]:
    """Every explorable on its page, drawn: its kind, and where it is. A page is opened once for all of its own."""
    for page, kinds in pages_of(site).items():
        tab.goto((site / page).as_uri(), wait_until="load")
        browsing.settle(tab)
        for kind in kinds:
            yield kind, tab.locator(f'[data-explorable="{kind}"]')


def test_on_a_screen_they_begin_as_their_pictures_and_are_moved_by_keyboard(
    browser: browsing.Browser, site: Path
) -> None:
    """The picture of each, for print and readers without scripts, is described by what the script says at first."""
    twins, faults = json.loads((explorables.STATIC / "twins.json").read_text(encoding="utf-8")), []
    with browsing.tab_in(browser, "light") as tab:
        tab.on("pageerror", lambda error: faults.append(f"{tab.url}: {error}"))
        for kind, place in opened(tab, site):
            assert place.locator(".explorable-description").inner_text() == twins[kind]
            assert place.locator("figure").is_hidden()
            faults += [fault for control in MOVES[kind] for fault in moved(tab, kind, control)]
    assert faults == []


def test_on_a_phone_they_are_moved_by_touch_and_by_keyboard(browser: browsing.Browser, site: Path) -> None:
    """A tap on the plane moves the key that is held, one on a slider sets it; the calculator has fields alone."""
    tab, faults = browsing.tab_of(browser, **browsing.MODES["phone"], has_touch=True, is_mobile=True), []
    tab.on("pageerror", lambda error: faults.append(f"{tab.url}: {error}"))
    touched = set()
    for kind, place in opened(tab, site):
        if kind != "head_dimension":
            target = place.locator("svg.plane" if kind == "plane" else "input[type=range]").first
            before = place.locator(".explorable-description").inner_text()
            target.scroll_into_view_if_needed()
            box = target.bounding_box()
            assert box is not None
            tab.touchscreen.tap(box["x"] + 0.9 * box["width"], box["y"] + 0.5 * box["height"])
            tab.evaluate(browsing.DRAWN)
            assert place.locator(".explorable-description").inner_text() != before, f"{kind} did not follow the finger"
            touched.add(kind)
        faults += [fault for control in MOVES[kind] for fault in moved(tab, kind, control)]
    tab.context.close()
    assert faults == [] and touched == set(explorables.KINDS) - {"head_dimension"}


def test_without_scripts_there_are_their_pictures(browser: browsing.Browser, site: Path) -> None:
    twins = json.loads((explorables.STATIC / "twins.json").read_text(encoding="utf-8"))
    tab = browsing.tab_of(browser, **browsing.MODES["light"], java_script_enabled=False)
    for page, kinds in pages_of(site).items():
        tab.goto((site / page).as_uri(), wait_until="load")
        for kind in kinds:
            image = tab.locator(f'[data-explorable="{kind}"] figure img')
            assert image.is_visible() and image.get_attribute("alt") == twins[kind]
    tab.context.close()
