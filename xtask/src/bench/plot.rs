//! The plot of a table: one bar for each row on a logarithmic scale, from its own text, without a library.

use super::page::{PageTable, slowest_first};
use super::report::{MeasuredReport, three_digits};

/// The colours that differ between the light and the dark plot, as in `docs/pictures`.
pub(super) struct PlotTheme {
    pub(super) name: &'static str,
    text: &'static str,
    note: &'static str,
    line: &'static str,
    cove: &'static str,
    other: &'static str,
}

pub(super) const THEMES: &[PlotTheme] = &[
    PlotTheme { name: "light", text: "#1f2328", note: "#59636e", line: "#d1d9e0", cove: "#0969da", other: "#afb8c1" },
    PlotTheme { name: "dark", text: "#e6edf3", note: "#9198a1", line: "#3d444d", cove: "#4493f8", other: "#656c76" },
];

const WIDTH: f64 = 960.0;
/// Where the bars begin and end; names are before, values after.
const LEFT: f64 = 350.0;
const RIGHT: f64 = 880.0;
const TOP: f64 = 60.0;
const ROW: f64 = 26.0;

/// A scale of whole powers of ten.
struct LogScale {
    lowest: i32,
    highest: i32,
}

impl LogScale {
    fn around(least: f64, most: f64) -> Self {
        let lowest = least.log10().floor() as i32;
        Self { lowest, highest: (most.log10().ceil() as i32).max(lowest + 1) }
    }

    fn place(&self, milliseconds: f64) -> f64 {
        let part = (milliseconds.log10() - f64::from(self.lowest)) / f64::from(self.highest - self.lowest);
        LEFT + (RIGHT - LEFT) * part
    }
}

pub(super) fn plot(report: &MeasuredReport, table: &PageTable, theme: &PlotTheme) -> String {
    let rows = slowest_first(report, table.id);
    let ends = rows.iter().flat_map(|row| [row.percentile(0.0), row.percentile(0.99)]);
    // A time that was rounded to nothing has no logarithm.
    let (least, most) = ends.fold((1.0_f64, 1.0_f64), |(least, most), end| (least.min(end.max(0.001)), most.max(end)));
    let scale = LogScale::around(least, most);
    let bottom = TOP + ROW * rows.len() as f64;
    let PlotTheme { text, note, line, cove, other, .. } = theme;
    let title = table.title;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-labelledby=\"title\">
  <title id=\"title\">{title}: median time in milliseconds</title>
  <style>
    text {{ font: 13px system-ui, -apple-system, \"Segoe UI\", \"DejaVu Sans\", sans-serif; fill: {text} }}
    .head {{ font-size: 17px; font-weight: 600 }}
    .note {{ font-size: 12px; fill: {note} }}
    .grid {{ stroke: {line} }}
    .range {{ stroke: {text}; stroke-width: 1.5; opacity: 0.5 }}
    .cove {{ fill: {cove} }}
    .other {{ fill: {other} }}
    .own {{ font-weight: 600 }}
  </style>
  <text class=\"head\" x=\"16\" y=\"24\">{title}</text>
  <text class=\"note\" x=\"16\" y=\"44\">median in ms, logarithmic; the line is from the fastest round to p99; shorter is better</text>
",
        height = bottom + 30.0,
    );
    for power in scale.lowest..=scale.highest {
        let (x, label) = (scale.place(10_f64.powi(power)), 10_f64.powi(power));
        svg += &format!("  <path class=\"grid\" d=\"M{x:.1} {TOP} V{bottom}\"/>\n");
        svg += &format!(
            "  <text class=\"note\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label} ms</text>\n",
            bottom + 18.0
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let top = TOP + ROW * index as f64;
        let [least, half, most] = [0.0, 0.5, 0.99].map(|part| scale.place(row.percentile(part).max(0.001)));
        let (bar, own) = if row.is_cove { ("cove", " class=\"own\"") } else { ("other", "") };
        let (text_y, middle, width) = (top + 17.0, top + ROW / 2.0, half - LEFT);
        let (value, name) = (three_digits(row.percentile(0.5)), escaped(&row.name));
        svg += &format!("  <text{own} x=\"{}\" y=\"{text_y}\" text-anchor=\"end\">{name}</text>\n", LEFT - 10.0);
        svg += &format!(
            "  <rect class=\"{bar}\" x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"16\" rx=\"2\"/>\n",
            top + 5.0
        );
        svg += &format!("  <path class=\"range\" d=\"M{least:.1} {middle} H{most:.1}\"/>\n");
        svg += &format!("  <text{own} x=\"{:.1}\" y=\"{text_y}\">{value}</text>\n", most + 8.0);
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_has_whole_powers_of_ten() {
        let scale = LogScale::around(0.2, 150.0);
        assert_eq!((scale.lowest, scale.highest), (-1, 3));
        assert_eq!((scale.place(0.1), scale.place(10.0), scale.place(1000.0)), (LEFT, (LEFT + RIGHT) / 2.0, RIGHT));
        assert_eq!(escaped("a < b & c"), "a &lt; b &amp; c");
    }
}
