//! Plots: one bar for each row, from their own text, without a library. It must not know what is measured.

use super::report::three_digits;

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

/// What a plot shows, apart from its colours.
pub(super) struct BarPlot<'a> {
    /// The beginning of the names of its files.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// What the numbers are, in the title of the picture.
    pub(super) measure: &'static str,
    /// After the numbers of the scale.
    pub(super) unit: &'static str,
    /// How to read it.
    pub(super) note: &'static str,
    pub(super) bars: Vec<PlotBar<'a>>,
}

pub(super) struct PlotBar<'a> {
    pub(super) name: &'a str,
    pub(super) is_cove: bool,
    pub(super) value: f64,
    /// Where the line over the bar begins and ends.
    pub(super) range: Option<[f64; 2]>,
}

/// Where values are, from left to right.
enum PlotScale {
    /// Whole powers of ten.
    Logarithmic { lowest: i32, highest: i32 },
    /// Steps from nothing.
    Linear { step: f64, steps: u32 },
}

impl PlotScale {
    /// Returns a scale of powers of ten for values with a range, and one from nothing for others: times differ by
    /// orders of magnitude, sizes are seen as lengths.
    fn of(bars: &[PlotBar<'_>]) -> Self {
        if bars.iter().any(|bar| bar.range.is_some()) {
            let ends = bars.iter().flat_map(|bar| bar.range.unwrap_or([bar.value; 2]));
            // A time that was rounded to nothing has no logarithm.
            let fold = |(least, most): (f64, f64), end: f64| (least.min(end.max(0.001)), most.max(end));
            let (least, most) = ends.fold((1.0, 1.0), fold);
            let lowest = least.log10().floor() as i32;
            return Self::Logarithmic { lowest, highest: (most.log10().ceil() as i32).max(lowest + 1) };
        }
        let most = bars.iter().map(|bar| bar.value).fold(5.0, f64::max);
        let power = 10_f64.powi((most / 5.0).log10().floor() as i32);
        let step = [1.0, 2.0, 5.0].map(|part| part * power).into_iter().find(|step| step * 5.0 >= most);
        let step = step.unwrap_or(10.0 * power);
        Self::Linear { step, steps: (most / step).ceil() as u32 }
    }

    fn place(&self, value: f64) -> f64 {
        let part = match self {
            Self::Logarithmic { lowest, highest } => {
                (value.max(0.001).log10() - f64::from(*lowest)) / f64::from(highest - lowest)
            }
            Self::Linear { step, steps } => value / (step * f64::from(*steps)),
        };
        LEFT + (RIGHT - LEFT) * part
    }

    fn marks(&self) -> Vec<f64> {
        match self {
            Self::Logarithmic { lowest, highest } => (*lowest..=*highest).map(|power| 10_f64.powi(power)).collect(),
            Self::Linear { step, steps } => (0..=*steps).map(|number| step * f64::from(number)).collect(),
        }
    }
}

impl BarPlot<'_> {
    pub(super) fn svg(&self, theme: &PlotTheme) -> String {
        let Self { title, measure, unit, note: about, bars, .. } = self;
        let PlotTheme { text, note, line, cove, other, .. } = theme;
        let scale = PlotScale::of(bars);
        let bottom = TOP + ROW * bars.len() as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\" aria-labelledby=\"title\">
  <title id=\"title\">{title}: {measure}</title>
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
  <text class=\"note\" x=\"16\" y=\"44\">{about}</text>
",
            height = bottom + 30.0,
        );
        for mark in scale.marks() {
            let x = scale.place(mark);
            svg += &format!("  <path class=\"grid\" d=\"M{x:.1} {TOP} V{bottom}\"/>\n");
            svg += &format!(
                "  <text class=\"note\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{mark}{unit}</text>\n",
                bottom + 18.0
            );
        }
        for (index, bar) in bars.iter().enumerate() {
            svg += &bar.svg(&scale, TOP + ROW * index as f64);
        }
        svg + "</svg>\n"
    }
}

impl PlotBar<'_> {
    fn svg(&self, scale: &PlotScale, top: f64) -> String {
        let (class, own) = if self.is_cove { ("cove", " class=\"own\"") } else { ("other", "") };
        let (text_y, middle, name) = (top + 17.0, top + ROW / 2.0, escaped(self.name));
        let end = scale.place(self.value);
        let mut svg = format!("  <text{own} x=\"{}\" y=\"{text_y}\" text-anchor=\"end\">{name}</text>\n", LEFT - 10.0);
        svg += &format!(
            "  <rect class=\"{class}\" x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"16\" rx=\"2\"/>\n",
            top + 5.0,
            end - LEFT
        );
        let range = self.range.map(|range| range.map(|value| scale.place(value)));
        if let Some([least, most]) = range {
            svg += &format!("  <path class=\"range\" d=\"M{least:.1} {middle} H{most:.1}\"/>\n");
        }
        let x = range.map_or(end, |[_, most]| most) + 8.0;
        svg + &format!("  <text{own} x=\"{x:.1}\" y=\"{text_y}\">{}</text>\n", three_digits(self.value))
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(values: &[f64], range: Option<[f64; 2]>) -> Vec<PlotBar<'static>> {
        values.iter().map(|&value| PlotBar { name: "a < b & c", is_cove: true, value, range }).collect()
    }

    #[test]
    fn a_scale_of_times_has_whole_powers_of_ten() {
        let scale = PlotScale::of(&bars(&[1.0], Some([0.2, 150.0])));
        assert_eq!(scale.marks(), [0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert_eq!([0.1, 10.0, 1000.0].map(|value| scale.place(value)), [LEFT, (LEFT + RIGHT) / 2.0, RIGHT]);
        assert!(PlotScale::of(&bars(&[0.0], Some([0.0, 0.0]))).place(0.0).is_finite());
    }

    #[test]
    fn a_scale_of_sizes_begins_with_nothing() {
        let marks = |values: &[f64]| PlotScale::of(&bars(values, None)).marks();
        assert_eq!(marks(&[116.0, 6.0]), [0.0, 50.0, 100.0, 150.0]);
        assert_eq!(marks(&[1741.0]), [0.0, 500.0, 1000.0, 1500.0, 2000.0]);
        assert_eq!(marks(&[100.0]), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(PlotScale::of(&bars(&[100.0], None)).place(50.0), (LEFT + RIGHT) / 2.0);
    }

    #[test]
    fn names_are_escaped() {
        let plot = BarPlot { id: "a", title: "b", measure: "c", unit: " MB", note: "d", bars: bars(&[0.5, 2.0], None) };
        let svg = plot.svg(&THEMES[0]);
        assert!(svg.contains(">a &lt; b &amp; c</text>") && svg.contains(">2 MB</text>") && !svg.contains("range\""));
    }
}
