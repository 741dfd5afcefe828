//! Attempts over time in the retry storm, as SVG.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::simulation::controls::Policy;
use crate::simulation::{Client, Report, fleet, metastable, per_second};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const PANEL: f64 = 230.0;

struct Line {
    name: &'static str,
    color: &'static str,
    dash: &'static str,
    per_second: Vec<f64>,
}

struct Panel {
    title: &'static str,
    y_axis: &'static str,
    /// Seconds shown; the axis counts from the start of the trouble.
    from: f64,
    to: f64,
    trouble: (f64, f64),
    trouble_name: &'static str,
    /// Top of the y axis, and the distance of its marks.
    top: f64,
    mark: f64,
    lines: Vec<Line>,
}

pub(crate) fn write(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, draw(&[storm(), dip()]))
}

/// The mean of three seconds: the noise of single seconds hides the lines.
fn smooth(times: &[f64], from: f64, to: f64) -> Vec<f64> {
    let counts = per_second(times, from - 1.0, to + 1.0);
    counts.windows(3).map(|three| three.iter().sum::<usize>() as f64 / 3.0).collect()
}

const OURS: (&str, &str, &str) = ("tidegate", "#0b6e4f", "");
const FOUR: (&str, &str, &str) = ("4 attempts, full jitter, no budget", "#c77700", "7 3");

fn storm() -> Panel {
    let (from, to) = (fleet::OUTAGE.0 - 20.0, fleet::OUTAGE.1 + 30.0);
    let line = |(name, color, dash), client| {
        let report: Report = fleet::run(client, 0);
        Line { name, color, dash, per_second: smooth(&report.attempts, from, to) }
    };
    Panel {
        title: "Attempts per second: 100 processes, 1 request/s each, upstream down for 30 s",
        y_axis: "attempts/s",
        from,
        to,
        trouble: fleet::OUTAGE,
        trouble_name: "outage",
        top: 1000.0,
        mark: 200.0,
        lines: vec![
            line(("two layers of 3 attempts", "#b3261e", "2 3"), Client::Control(Policy::nested)),
            line(FOUR, Client::Control(Policy::four_attempts)),
            line(OURS, fleet::ours()),
        ],
    }
}

fn dip() -> Panel {
    let (from, to) = (metastable::DIP.0 - 20.0, metastable::DIP.1 + 90.0);
    let line = |(name, color, dash), processes, client| {
        let report = metastable::run(processes, client, 0);
        Line { name, color, dash, per_second: smooth(&report.successes, from, to) }
    };
    Panel {
        title: "Requests answered in time per second: 100 requests/s, capacity 120 → 20 → 120/s",
        y_axis: "answers/s",
        from,
        to,
        trouble: metastable::DIP,
        trouble_name: "capacity 20/s",
        top: 140.0,
        mark: 20.0,
        lines: vec![
            line(FOUR, 200, Client::Control(Policy::four_attempts)),
            line(OURS, 200, metastable::ours()),
            line(("tidegate, all in one process", "#2f6fb5", "9 3 2 3"), 1, metastable::shared()),
        ],
    }
}

fn draw(panels: &[Panel]) -> String {
    const TITLE: f64 = 58.0;
    const AXIS: f64 = 56.0;
    let pitch = TITLE + PANEL + AXIS;
    let height = pitch * panels.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"13\" fill=\"#1f2933\">\n\
         <title>A retry storm, simulated</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        panel.draw(&mut svg, index as f64 * pitch + TITLE);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Writing to a `String` cannot fail.
macro_rules! put {
    ($svg:expr, $($text:tt)*) => { let _ = writeln!($svg, $($text)*); };
}

impl Panel {
    fn x(&self, second: f64) -> f64 {
        LEFT + (second - self.from) / (self.to - self.from) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, top: f64, value: f64) -> f64 {
        top + PANEL * (1.0 - value.min(self.top) / self.top)
    }

    fn draw(&self, svg: &mut String, top: f64) {
        let bottom = top + PANEL;
        put!(
            svg,
            r#"<text x="{LEFT}" y="{:.1}" font-size="15" font-weight="600">{}</text>"#,
            top - 36.0,
            self.title
        );
        self.legend(svg, top - 14.0);
        let (begin, end) = (self.x(self.trouble.0), self.x(self.trouble.1));
        put!(
            svg,
            r##"<rect x="{begin:.1}" y="{top:.1}" width="{:.1}" height="{PANEL}" fill="#e8edf3"/>"##,
            end - begin
        );
        put!(
            svg,
            r##"<text x="{:.1}" y="{:.1}" text-anchor="middle" fill="#52606d">{}</text>"##,
            f64::midpoint(begin, end),
            top + 16.0,
            self.trouble_name
        );
        self.axes(svg, top, bottom);
        for line in &self.lines {
            let points = line.per_second.iter().zip(0_u32..).map(|(value, second)| {
                let x = self.x(self.from + f64::from(second) + 0.5);
                format!("{x:.1},{:.1}", self.y(top, *value))
            });
            put!(
                svg,
                r#"<polyline fill="none" stroke="{}" stroke-width="2" stroke-dasharray="{}" points="{}"/>"#,
                line.color,
                line.dash,
                points.collect::<Vec<_>>().join(" ")
            );
        }
    }

    fn legend(&self, svg: &mut String, y: f64) {
        let mut x = LEFT;
        for line in &self.lines {
            let middle = y - 4.0;
            put!(
                svg,
                r#"<line x1="{x}" y1="{middle:.1}" x2="{}" y2="{middle:.1}" stroke="{}" stroke-width="2.5" stroke-dasharray="{}"/>"#,
                x + 28.0,
                line.color,
                line.dash
            );
            put!(svg, r#"<text x="{}" y="{y:.1}">{}</text>"#, x + 34.0, line.name);
            x += 64.0 + 7.0 * line.name.len() as f64;
        }
    }

    fn axes(&self, svg: &mut String, top: f64, bottom: f64) {
        let right = WIDTH - RIGHT;
        let mut value = 0.0;
        while value <= self.top {
            let y = self.y(top, value);
            put!(
                svg,
                r##"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#cbd2d9" stroke-width="0.7"/>"##
            );
            put!(svg, r#"<text x="{}" y="{:.1}" text-anchor="end">{value}</text>"#, LEFT - 6.0, y + 4.5);
            value += self.mark;
        }
        let mut second = self.from;
        while second <= self.to {
            let x = self.x(second);
            put!(
                svg,
                r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                bottom + 18.0,
                second - self.trouble.0
            );
            second += 10.0;
        }
        put!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="middle">seconds from the start</text>"#,
            f64::midpoint(LEFT, right),
            bottom + 38.0
        );
        let middle = f64::midpoint(top, bottom);
        put!(
            svg,
            r#"<text x="16" y="{middle:.1}" text-anchor="middle" transform="rotate(-90 16 {middle:.1})">{}</text>"#,
            self.y_axis
        );
    }
}
