"""The report in a real browser: sort, filter, hover, zoom, copy, keyboard, narrow screen, dark."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from madestore import TEST_SAMPLES, keep, keep_table, made_config, made_profile, made_table

from pfl_bench.reporting.report.page import write_report
from pfl_bench.reporting.tables.reading import load_table
from pfl_bench.store.store import Store

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="there is no chromium with its chromedriver (Debian: chromium, chromium-driver)",
)

NASTY = "</script><script>document.title='led astray'</script><img src=x onerror=alert(1)>"
MANY = 500
SWITCHES = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip


class Browser:
    """A page in Chromium, and what a person does with it."""

    def __init__(self, profile: Path):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for switch in (*SWITCHES, f"--user-data-dir={profile}"):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(executable_path=DRIVER)
        self.driver = webdriver.Chrome(options=options, service=service)

    def open(self, page: Path, width: int = 1280, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.prefer("light")
        self.driver.get(page.as_uri())
        self.script("localStorage.clear(); document.documentElement.style.scrollBehavior = 'auto'")

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def script(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """What is seen of the elements."""
        found = self.driver.find_elements("css selector", selector)
        return [element.text for element in found if element.is_displayed()]

    def click(self, selector: str) -> None:
        element = self.find(selector)
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def choose(self, selector: str, text: str) -> None:
        Select(self.find(selector)).select_by_visible_text(text)

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def paste(self) -> None:
        keys = ActionChains(self.driver).key_down(Keys.CONTROL).send_keys("v")
        keys.key_up(Keys.CONTROL).perform()

    def wait(self, condition: str, *arguments: Any) -> Any:
        told = f"return {condition}"
        return WebDriverWait(self.driver, 10, 0.05).until(lambda _: self.script(told, *arguments))

    def focused(self) -> str:
        return self.script(
            "const e = document.activeElement; return e.id || e.className || e.tagName"
        )

    def errors(self) -> list[str]:
        return [
            line["message"] for line in self.driver.get_log("browser") if line["level"] == "SEVERE"
        ]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("browser"))
    yield started
    started.driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of three methods, an experiment of many clients, a run with a hostile name, and a
    damaged one."""
    folder = tmp_path_factory.mktemp("made")
    store, spec = Store(folder / "results"), made_table(folder)
    profile = made_profile(folder, "standin", rounds=8)
    keep_table(store, spec, profile, {"FedAvg": 12, "FedCP": 5, "Ditto": 8})
    draw = random.Random(0)
    for algo in ("fedavg", "fedper"):
        counts = [[draw.randint(5, TEST_SAMPLES) for _ in range(MANY)] for _ in range(3)]
        keep(store, made_config(profile, algo=algo, clients=MANY), counts)
    keep(store, made_config(profile, {"lambda": 2}, algo="fedcp", clients=MANY), counts)
    keep(store, replace(made_config(profile), algo=NASTY, dataset=NASTY), [[1, 2], [3, 4]])
    damaged = keep(store, made_config(profile, algo="local"), [[1]])
    (damaged.path / "rounds.jsonl").write_bytes(b"")
    write_report(folder / "page.html", store, [spec], [profile], Path("no-data"))
    return folder / "page.html"


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    browser.open(page)
    browser.wait(
        "typeof Plotly !== 'undefined' && document.querySelector('#curves .legend') !== null"
    )
    yield browser
    assert browser.errors() == []
    assert browser.driver.title.startswith("pfl-bench report")


def rows(browser: Browser, table: str = ".sheet table.figures") -> list[str]:
    return [text.splitlines()[0] for text in browser.texts(f"{table} > tbody > tr > th")]


def head(column: int) -> str:
    return f".sheet table.figures thead th:nth-child({column})"


def test_a_column_sorts_best_first_then_worst_first_then_as_printed(opened: Browser) -> None:
    printed = ["FedAvg", "FedCP", "Ditto"]
    assert rows(opened) == printed
    for order, expected in (
        ("descending", ["FedAvg", "Ditto", "FedCP"]),
        ("ascending", ["FedCP", "Ditto", "FedAvg"]),
        ("none", printed),
    ):
        opened.click(f"{head(2)} button")
        assert rows(opened) == expected
        assert opened.find(head(2)).get_attribute("aria-sort") == order


def test_a_column_sorts_by_the_papers_ranking_too(opened: Browser) -> None:
    opened.click(f"{head(2)} button")
    opened.choose("#sort-by", "the paper’s")
    assert rows(opened) == ["FedCP", "Ditto", "FedAvg"]


def test_filters_hold_for_tables_experiments_and_runs(opened: Browser) -> None:
    opened.choose("#filter-method", "FedCP")
    assert rows(opened) == ["FedCP"]
    assert set(opened.texts("#run-list .expand")) == {"FedCP"}
    opened.choose("#filter-dataset", "MNIST (stand-in)")
    assert [t.replace("\n", " ") for t in opened.texts(".sheet table.figures thead .sort")] == [
        "method",
        "practical MNIST",
    ]
    assert len(opened.texts("#run-list .expand")) == 3
    experiments = Select(opened.find("#experiment-choice")).options
    assert len(experiments) == 1 and experiments[0].text.startswith("MNIST (stand-in)")
    assert opened.texts("#costs tbody th")[0].startswith("FedCP")
    opened.choose("#filter-setting", "pathological")
    assert opened.find("#no-table").is_displayed() and opened.find("#no-experiment").is_displayed()
    assert "No run matches" in opened.find("#run-count").text
    opened.click("#reset")
    opened.wait("document.querySelectorAll('#run-list .expand').length > 3")
    assert len(rows(opened)) == 3


def test_a_cell_leads_to_its_runs(opened: Browser) -> None:
    opened.click(".sheet tbody tr:nth-child(2) td button.figure")
    assert opened.texts("#run-list .expand") == ["FedCP"] * 3
    assert "FedCP, practical MNIST" in opened.find("#picked").text
    assert opened.focused() == "runs-title"
    opened.click("#picked button")
    assert len(opened.texts("#run-list .expand")) > 3


def test_hovering_over_a_curve_shows_its_value(opened: Browser) -> None:
    opened.choose("#experiment-choice", experiment(opened, "MNIST (stand-in)"))
    curve = "document.querySelectorAll('#curves .scatterlayer .trace path.point')"
    opened.wait(f"{curve}.length > 0")
    opened.script("document.querySelector('#curves').scrollIntoView({block: 'center'})")
    points = opened.driver.find_elements("css selector", "#curves .scatterlayer path.point")
    ActionChains(opened.driver).move_to_element(points[-1]).perform()
    opened.wait("document.querySelector('#curves .hoverlayer .hovertext') !== null")
    assert "round 8" in opened.find("#curves .hoverlayer").text
    assert "(3 seeds)" in opened.find("#curves .hoverlayer").text


def test_dragging_zooms_and_a_double_click_shows_all(opened: Browser) -> None:
    opened.script("document.querySelector('#curves').scrollIntoView({block: 'center'})")
    area = opened.find("#curves .nsewdrag")
    span = "((r) => r[1] - r[0])(document.querySelector('#curves')._fullLayout.xaxis.range)"
    before = opened.script(f"return {span}")
    drag = ActionChains(opened.driver).move_to_element_with_offset(area, -100, -50)
    drag.click_and_hold().move_by_offset(150, 100).release().perform()
    opened.wait(f"{span} < {before / 2}")
    ActionChains(opened.driver).double_click(area).perform()
    opened.wait(f"Math.abs({span} - {before}) < 1e-6")


def test_the_picture_offers_no_button_that_uploads(opened: Browser) -> None:
    titles = opened.script(
        "return [...document.querySelectorAll('#curves .modebar-btn')].map(b => b.dataset.title)"
    )
    assert titles == ["Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes", "Download plot as a PNG"]


def test_curves_are_drawn_over_bytes_and_time_as_well(opened: Browser) -> None:
    opened.choose("#experiment-choice", experiment(opened, "MNIST (stand-in)"))
    last = "Math.max(...document.querySelector('#curves').data.map(t => Math.max(...t.x)))"
    for name, expected in (("MB communicated", 8 * 3 * 4), ("seconds", 8 * 0.75), ("rounds", 8)):
        opened.choose("#curve-x", name)
        opened.wait(f"Math.abs({last} - {expected}) < 1e-6")


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_the_expanded_run_tells_all_and_its_command_is_copied(
    opened: Browser, has_clipboard: bool
) -> None:
    if not has_clipboard:
        opened.script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    opened.choose("#filter-method", "FedCP")
    opened.click("#run-list .expand")
    opened.wait("document.querySelector('#run-list .detail .copy') !== null")
    detail = opened.find("#run-list .detail").text
    for told in ("hyper.lambda", "data_fingerprint", "machine.cores", "peak memory", "MB up"):
        assert told in detail
    command = opened.find("#run-list .copy").get_attribute("data-copy")
    assert command.startswith("pfl-bench run --algo fedcp") and command in detail.replace("\n", " ")
    opened.click("#run-list .copy")
    opened.wait("document.querySelector('#run-list .copy').textContent === 'Copied'")
    opened.click("#search")
    opened.paste()
    assert opened.find("#search").get_property("value") == command


def test_runs_are_found_by_their_settings(opened: Browser) -> None:
    opened.find("#search").send_keys("clients=500 fedper")
    assert opened.texts("#run-list .expand") == ["FedPer"]


def test_five_hundred_clients_are_drawn_each(opened: Browser) -> None:
    opened.choose("#experiment-choice", experiment(opened, "500 clients"))
    opened.wait(f"document.querySelectorAll('#clients .bars .point').length === {MANY}")
    heights = opened.script("return document.querySelector('#clients').data[0].y")
    assert heights == sorted(heights)
    opened.find("#search").send_keys("clients=500 fedper")
    opened.click("#run-list .expand")
    opened.wait(f"document.querySelectorAll('.strip rect').length === {MANY}")


def test_dark_follows_the_system_and_the_button(opened: Browser) -> None:
    shade = "getComputedStyle(document.body).backgroundColor"
    light = opened.script(f"return {shade}")
    opened.prefer("dark")
    dark = opened.script(f"return {shade}")
    assert dark != light and brightness(dark) < 64 < brightness(light)
    opened.click("#theme")
    assert opened.script(f"return {shade}") == light
    opened.click("#theme")
    assert opened.script(f"return {shade}") == dark
    ink = opened.script("return document.querySelector('#curves')._fullLayout.font.color")
    assert brightness(ink) > 192


def brightness(colour: str) -> float:
    numbers = colour[colour.index("(") + 1 : -1].split(",")[:3]
    return sum(map(float, numbers)) / 3


def test_the_page_is_worked_with_keys_alone(opened: Browser) -> None:
    opened.press(Keys.TAB)
    assert opened.focused() == "skip" and opened.find(".skip").rect["x"] >= 0
    opened.press(Keys.ENTER)
    assert opened.focused() == "content"
    opened.press(Keys.TAB, Keys.TAB)  # the links to the table and to the damaged runs
    for expected in (
        "filter-dataset",
        "filter-setting",
        "filter-method",
        "reset",
        "metric",
        "sort-by",
    ):
        opened.press(Keys.TAB)
        assert opened.focused() == expected
    outline = opened.script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    while opened.focused() != "sort":
        opened.press(Keys.TAB)
    opened.press(Keys.TAB, Keys.ENTER)
    assert rows(opened) == ["FedAvg", "Ditto", "FedCP"]


def test_curves_are_read_and_zoomed_with_keys(opened: Browser) -> None:
    opened.choose("#experiment-choice", experiment(opened, "MNIST (stand-in)"))
    opened.script("document.querySelector('#curves').focus()")
    opened.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert "round 3: " in opened.find("#curves-read").text
    span = "((r) => r[1] - r[0])(document.querySelector('#curves')._fullLayout.xaxis.range)"
    before = opened.script(f"return {span}")
    opened.press("+")
    opened.wait(f"{span} < {before}")
    opened.press("0")
    opened.wait(f"Math.abs({span} - {before}) < 1e-6")


def test_a_hostile_name_is_shown_as_it_is(opened: Browser) -> None:
    assert NASTY in opened.texts("#run-list .expand")
    opened.choose("#filter-method", NASTY)
    opened.wait("document.querySelector('#curves .legendtext') !== null")
    shown = opened.script("return document.querySelector('#curves .legendtext').textContent")
    assert NASTY.startswith(shown.removesuffix("…")) and shown.startswith("</script>")
    assert opened.script("return document.querySelectorAll('main img, main script').length") == 0


def test_labels_and_roles_are_there(opened: Browser) -> None:
    unnamed = opened.script(
        "return [...document.querySelectorAll('select, input, button')].filter(e =>"
        " !(e.labels && e.labels.length) && !e.textContent.trim() && !e.ariaLabel)"
        ".map(e => e.outerHTML)"
    )
    assert unnamed == []
    assert opened.script("return document.documentElement.lang") == "en"


def test_tables_are_switched_to_another_metric_and_back(opened: Browser) -> None:
    before = opened.texts(".sheet tbody .figure")
    opened.choose("#metric", "test accuracy of the worst tenth of clients")
    opened.wait("document.querySelector('.sheet .caption').textContent.includes('worst tenth')")
    assert opened.texts(".sheet tbody .figure") != before
    opened.click(".sheet thead th:nth-child(2) .sort")
    assert rows(opened) == ["FedAvg", "Ditto", "FedCP"]
    opened.choose("#metric", "test accuracy")
    opened.wait("!document.querySelector('.sheet .caption').textContent.includes('worst tenth')")
    assert opened.texts(".sheet tbody .figure") == before


def test_variants_of_a_method_are_drawn_on_request(opened: Browser) -> None:
    opened.choose("#experiment-choice", experiment(opened, "500 clients"))
    assert [text.split()[0] for text in opened.texts("#costs tbody th")] == ["FedAvg", "FedPer"]
    opened.click("#variants")
    opened.wait("document.querySelector('#costs').textContent.includes('FedCP')")


def test_a_table_of_twelve_columns_is_not_cut_off_at_1400_pixels(
    browser: Browser, tmp_path: Path
) -> None:
    store, main = Store(tmp_path / "results"), load_table("main")
    profile = made_profile(tmp_path, "standin", rounds=2)
    spec = main.restricted(("fedavg", "fedcp"), ())
    assert len(spec.columns) >= 9
    for cell in spec.cells.values():
        for seed in (0, 1):
            config = made_config(profile, dict(cell.hyper), **cell.chosen, seed=seed)
            keep(store, config, [[40 + seed] * config.clients, [45] * config.clients])
    write_report(tmp_path / "page.html", store, [spec], [profile], tmp_path)
    browser.open(tmp_path / "page.html", width=1400)
    browser.wait("document.querySelector('#run-list .expand') !== null")
    cut = "e => e.scrollWidth > e.clientWidth"
    assert browser.script(f"return [...document.querySelectorAll('.scroll')].filter({cut})") == []


@pytest.mark.parametrize("width", [360, 768])
def test_a_narrow_screen_does_not_scroll_sideways(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width, height=740)
    browser.wait("document.querySelector('#curves .legend') !== null")
    for experiment_name in ("500 clients", "MNIST (stand-in)"):
        browser.choose("#experiment-choice", experiment(browser, experiment_name))
        browser.find("#run-list .expand").send_keys(Keys.ENTER)
        inside = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert browser.script(f"return {inside}")
    assert browser.errors() == []


def test_nothing_is_asked_of_the_network(browser: Browser, page: Path) -> None:
    browser.driver.get_log("performance")
    browser.open(page)
    browser.wait("document.querySelector('#curves .legend') !== null")
    asked = [
        line["message"]
        for line in browser.driver.get_log("performance")
        if '"Network.requestWillBeSent"' in line["message"]
    ]
    assert len(asked) == 1 and page.name in asked[0]
    browser.script("fetch('https://example.org').catch(() => { window.refused = true; })")
    browser.wait("window.refused === true")
    browser.errors()  # the refusal is meant, and logged


def test_an_empty_store_gives_a_quiet_page(browser: Browser, tmp_path: Path) -> None:
    write_report(tmp_path / "page.html", Store(tmp_path / "none"), [], [], tmp_path)
    for width in (1280, 360):
        browser.open(tmp_path / "page.html", width=width)
        assert "No results yet" in browser.find("h1").text
        browser.click(".copy")
        browser.wait("document.querySelector('.copy').textContent === 'Copied'")
        assert browser.script(
            "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
    assert browser.errors() == []


def experiment(browser: Browser, part: str) -> str:
    """The experiment whose line holds `part`, as printed."""
    options = Select(browser.find("#experiment-choice")).options
    return next(option.text for option in options if part in option.text)
