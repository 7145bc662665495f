//! Pages of `xdplab report --format html` in a real browser: everything is drawn where it belongs, can be read on light and
//! dark screens, and the console has nothing to say.
//!
//! Where there is no Chromium the tests are shown as ignored, with the reason; with `XDPLAB_REQUIRE_BROWSER_TESTS=1` they fail
//! instead.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking, and say what was ignored")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::Value;
use tempfile::TempDir;
use xdplab::record::Record;
use xdplab::report::{Format, Report};

/// Set to 1 where the tests must run.
const REQUIRE: &str = "XDPLAB_REQUIRE_BROWSER_TESTS";
const MISSING: &str = "needs Chromium; on Debian: apt-get install chromium";

fn main() -> ExitCode {
    let chromium = find();
    let tests = vec![
        test("a_comparison_is_drawn_and_readable_in_light", &chromium, |chromium| drawn(chromium, "programs", false)),
        test("a_comparison_is_drawn_and_readable_in_dark", &chromium, |chromium| drawn(chromium, "programs", true)),
        test("a_comparison_of_settings_is_drawn_and_readable_in_dark", &chromium, |chromium| {
            drawn(chromium, "settings", true);
        }),
        test("a_scenario_is_drawn_and_readable_in_light", &chromium, |chromium| drawn(chromium, "scenario", false)),
        test("kernels_by_function_are_drawn_and_readable_in_light", &chromium, |chromium| {
            drawn(chromium, "kernels", false);
        }),
        test("kernels_by_function_are_drawn_and_readable_in_dark", &chromium, |chromium| {
            drawn(chromium, "kernels", true)
        }),
        test("a_live_command_is_drawn_and_readable_in_light", &chromium, |chromium| drawn(chromium, "live", false)),
        test("imported_results_are_readable_in_light", &chromium, |chromium| drawn(chromium, "imported", false)),
        test("pictures_of_light_and_dark_are_not_empty_and_differ", &chromium, pictures),
        test("a_fault_that_is_planted_is_seen", &chromium, planted),
    ];
    let conclusion = libtest_mimic::run(&Arguments::from_args(), tests);
    if chromium.is_none() {
        println!("ignored: {MISSING}");
    }
    conclusion.exit_code()
}

fn find() -> Option<PathBuf> {
    let folders: Vec<PathBuf> = env::split_paths(&env::var_os("PATH")?).collect();
    let names = ["chromium", "chromium-browser", "google-chrome"].into_iter();
    names.flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|path| path.is_file())
}

fn test(name: &str, chromium: &Option<PathBuf>, body: fn(&Path)) -> Trial {
    let chromium = chromium.clone();
    Trial::ignorable_test(name, move || match chromium {
        Some(chromium) => {
            body(&chromium);
            Ok(Completion::Completed)
        }
        None if env::var(REQUIRE).is_ok_and(|value| value == "1") => {
            Err(Failed::from(format!("{REQUIRE}=1, but it can't run: {MISSING}")))
        }
        None => Ok(Completion::ignored_with(MISSING)),
    })
}

/// A page in a folder of its own, which also takes what the browser writes.
struct Page {
    folder: TempDir,
}

impl Page {
    fn of(html: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("page.html"), html).unwrap();
        Self { folder }
    }

    fn open(&self, chromium: &Path, is_dark: bool, more: &[&str]) -> Output {
        let profile = format!("--user-data-dir={}", self.folder.path().join("profile").display());
        let output = Command::new(chromium)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"])
            .args([
                "--no-first-run",
                "--disable-extensions",
                "--disable-background-networking",
                "--disable-dev-shm-usage",
            ])
            .args(["--window-size=1200,3200", "--virtual-time-budget=2000", &profile])
            .args(is_dark.then_some("--blink-settings=preferredColorScheme=0"))
            .args(more)
            .arg(self.folder.path().join("page.html"))
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// What the probe found, and what the console said.
    fn probe(&self, chromium: &Path, is_dark: bool) -> (Value, Vec<String>) {
        let output = self.open(chromium, is_dark, &["--dump-dom"]);
        let dom = String::from_utf8(output.stdout).unwrap();
        let told = dom.split_once("<pre id=\"probe\">").unwrap().1.split_once("</pre>").unwrap().0;
        let told = told.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let console = stderr.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
        (serde_json::from_str(&told).unwrap(), console)
    }
}

fn page(record: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/records").join(record).with_extension("json");
    let record = Record::read(&path).unwrap();
    Report::of(&[("record.json".into(), record)]).write(Format::Html).unwrap()
}

/// Looks at the page from within. Contrast is that of WCAG 2.2, whose least for text is 4.5.
const PROBE: &str = r#"<script>
const faults = [], box = element => element.getBoundingClientRect();
for (const svg of document.querySelectorAll("svg")) {
  const s = box(svg);
  if (s.width < 50 || s.height < 5) faults.push("a drawing has no size");
  for (const text of svg.querySelectorAll("text")) {
    const t = box(text);
    if (t.left < s.left - 1 || t.right > s.right + 1 || t.top < s.top - 1 || t.bottom > s.bottom + 1)
      faults.push("outside of its drawing: " + text.textContent);
  }
}
if (document.documentElement.scrollWidth > innerWidth) faults.push("wider than the window");
const color = css => css.match(/[\d.]+/g).map(Number);
const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = element => {
  for (let e = element; e; e = e.parentElement) {
    const back = color(getComputedStyle(e).backgroundColor);
    if (back.length < 4 || back[3] > 0.99) return back;
  }
  return [255, 255, 255];
};
for (const element of document.querySelectorAll("p,li,td,th,dd,dt,h1,h2,h3,summary,code,footer,.tag,svg text,svg tspan")) {
  if (!element.textContent.trim()) continue;
  const style = getComputedStyle(element);
  const front = luminance(color(element.closest("svg") ? style.fill : style.color)), back = luminance(behind(element));
  const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
  if (contrast < 4.5) faults.push("contrast " + contrast.toFixed(1) + ": " + element.textContent);
}
const probe = document.createElement("pre");
probe.id = "probe";
probe.textContent = JSON.stringify({
  dark: matchMedia("(prefers-color-scheme: dark)").matches, drawings: document.querySelectorAll("svg").length, faults
});
document.body.append(probe);
</script></body>"#;

fn with_probe(page: &str) -> Page {
    Page::of(&page.replace("</body>", PROBE))
}

fn drawn(chromium: &Path, record: &str, is_dark: bool) {
    let (probed, console) = with_probe(&page(record)).probe(chromium, is_dark);
    assert_eq!(probed["dark"], is_dark, "{probed}");
    assert_eq!(probed["faults"], serde_json::json!([]));
    assert_eq!(console, [""; 0]);
    let drawings = probed["drawings"].as_u64().unwrap();
    assert!(record == "imported" || drawings >= 3, "{drawings} drawings");
}

fn pictures(chromium: &Path) {
    let taken = [false, true].map(|is_dark| {
        let page = Page::of(&page("programs"));
        page.open(chromium, is_dark, &["--screenshot=page.png"]);
        let picture = fs::read(page.folder.path().join("page.png")).unwrap();
        assert!(picture.starts_with(b"\x89PNG"));
        picture
    });
    let empty = Page::of("<!DOCTYPE html><title>empty</title>");
    empty.open(chromium, false, &["--screenshot=page.png"]);
    let empty = fs::read(empty.folder.path().join("page.png")).unwrap();
    for picture in &taken {
        assert!(picture.len() > 5 * empty.len(), "{} bytes, and an empty page has {}", picture.len(), empty.len());
    }
    assert_ne!(taken[0], taken[1]);
}

/// The probe and the console can find something.
fn planted(chromium: &Path) {
    let bad = page("programs")
        .replace("--faint: #5d6672", "--faint: #dddddd")
        .replace("</main>", "<div style='width: 3000px'>wide</div></main><script>console.error('planted')</script>")
        .replacen("</svg>", "<text x='899'>outside</text></svg>", 1);
    let (probed, console) = with_probe(&bad).probe(chromium, false);
    let faults = probed["faults"].to_string();
    for fault in ["contrast ", "wider than the window", "outside of its drawing: outside"] {
        assert!(faults.contains(fault), "{fault} is not in {faults}");
    }
    assert!(console.iter().any(|line| line.contains("planted")), "{console:?}");
}
