//! Draws a chart as SVG: a line for each contestant, with its name at the end of the line.
//!
//! Fonts, colours and the light card are those of `scripts/diagrams.py`, so that charts and diagrams read
//! alike on a white and on a dark page.

use std::fmt::Write as _;

use crate::chart::{Chart, Line, Role};
use crate::report::grouped;

/// The number of peers in a chart. The table below it lists all of them.
const PEERS: usize = 3;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
/// Edges of the area with the lines.
const LEFT: f64 = 92.0;
const TOP: f64 = 76.0;
const RIGHT: f64 = 532.0;
const BOTTOM: f64 = HEIGHT - 62.0;
/// Distance between the names at the ends of the lines, at least.
const NAME_HEIGHT: f64 = 17.0;

const SANS: &str =
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const INK: &str = "#1f2933";
const MUTED: &str = "#52606d";
const EDGE: &str = "#cbd2d9";
const GRID: &str = "#e9edf1";
const PAPER: &str = "#ffffff";
const BLUE: &str = "#1d5fa8";
const RUST: &str = "#b3431b";
const GREEN: &str = "#2f7d4f";
const PURPLE: &str = "#7a4fa3";

/// Above this ratio between the largest and the smallest figure, the scale is logarithmic.
const LINEAR_UP_TO: f64 = 10.0;

/// Returns the lines of the picture: ours, limits, and the best peers, in the order of the chart. Ours with other
/// settings is drawn where there are no peers.
pub(super) fn drawn(chart: &Chart) -> Vec<&Line> {
    let mut peers: Vec<&Line> =
        of_role(chart, Role::Peer).filter(|l| !figures(l).is_empty()).collect();
    // Complete lines first, then by the geometric mean.
    let rank = |line: &Line| {
        let figures = figures(line);
        let mean = figures.iter().map(|f| f.ln()).sum::<f64>() / figures.len() as f64;
        let mean = if chart.unit.is_rate() { -mean } else { mean };
        (chart.at.len() - figures.len(), mean)
    };
    peers.sort_by(|a, b| {
        let (a, b) = (rank(a), rank(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    peers.truncate(PEERS);
    let is_drawn = |line: &&Line| match line.role {
        Role::Ours | Role::Limit => true,
        Role::Variant => peers.is_empty(),
        Role::Peer => peers.iter().any(|peer| std::ptr::eq(*peer, *line)),
    };
    chart.lines.iter().filter(is_drawn).collect()
}

/// Draws the chart.
pub(super) fn plot(chart: &Chart) -> String {
    let lines = drawn(chart);
    let scale = Scale::of(&lines.iter().flat_map(|line| figures(line)).collect::<Vec<_>>());
    let better = if chart.unit.is_rate() { "higher is better" } else { "lower is better" };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"{SANS}\" \
         role=\"img\" aria-labelledby=\"title desc\">\n\
         <title id=\"title\">{title}</title>\n\
         <desc id=\"desc\">{description}</desc>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"10\" fill=\"{PAPER}\" stroke=\"{EDGE}\"/>\n\
         <text x=\"24\" y=\"32\" font-size=\"14\" fill=\"{INK}\" font-weight=\"600\">{title}</text>\n\
         <text x=\"24\" y=\"53\" font-size=\"12.5\" fill=\"{MUTED}\">{}{}, {better}</text>\n",
        WIDTH - 1.0,
        HEIGHT - 1.0,
        escaped(chart.unit.axis()),
        scale.note(),
        title = escaped(&chart.title),
        description = escaped(&description(chart, &lines)),
    );
    draw_axes(&mut svg, chart, &scale);
    let mut names = Vec::new();
    let mut peers = [RUST, GREEN, PURPLE].iter().cycle();
    let mut coloured: Vec<_> = lines
        .into_iter()
        .map(|line| match line.role {
            Role::Ours | Role::Variant => (line, colour_of_ours(&line.name)),
            Role::Limit => (line, MUTED),
            Role::Peer => (line, peers.next().copied().unwrap_or(MUTED)),
        })
        .collect();
    // Ours is on top.
    coloured.sort_by_key(|(line, _)| line.role == Role::Ours);
    for (line, colour) in coloured {
        if let Some(end) = draw_line(&mut svg, chart, line, &scale, colour) {
            names.push((end, &line.name[..], colour, line.role));
        }
    }
    draw_names(&mut svg, names);
    svg + "</svg>\n"
}

/// The colour of a line of ours: each backend has its own in all charts.
fn colour_of_ours(name: &str) -> &'static str {
    match name {
        "Redis" => GREEN,
        name if name.starts_with("SQLite, ") => PURPLE,
        name if name.starts_with("SQLite") => RUST,
        _ => BLUE,
    }
}

fn of_role(chart: &Chart, role: Role) -> impl Iterator<Item = &Line> {
    chart.lines.iter().filter(move |line| line.role == role)
}

/// The medians of a line that can be drawn.
fn figures(line: &Line) -> Vec<f64> {
    line.spots.iter().flatten().map(|spot| spot.median).filter(|figure| *figure > 0.0).collect()
}

/// The chart in words, for readers who do not see it.
fn description(chart: &Chart, lines: &[&Line]) -> String {
    let mut text = format!("Line chart: {} by {}.", chart.unit.axis(), chart.along);
    for line in lines {
        let figure = |place: usize| {
            let spot = (*line.spots.get(place)?)?;
            Some(format!("{} at {}", chart.unit.human(spot.median), chart.at[place]))
        };
        let ends = [0, chart.at.len().saturating_sub(1)]
            .map(|place| figure(place).unwrap_or_else(|| "failed".to_owned()));
        let _ = write!(text, " {}: {}.", line.name, ends.join(", "));
    }
    text
}

/// The vertical axis.
#[derive(Debug, PartialEq)]
enum Scale {
    /// From 0 to the figure, with a label at each step.
    Linear { most: f64, step: f64 },
    /// From one figure to the other, both 1, 2 or 5 times a power of ten.
    Log { least: f64, most: f64 },
}

impl Scale {
    /// The scale for figures above 0.
    fn of(figures: &[f64]) -> Self {
        let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let most = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if figures.is_empty() {
            return Self::Linear { most: 1.0, step: 1.0 };
        }
        if most > least * LINEAR_UP_TO {
            let below = round_figures(least, most).rfind(|figure| *figure <= least);
            let above = round_figures(least, most).find(|figure| *figure >= most);
            return Self::Log { least: below.unwrap_or(least), most: above.unwrap_or(most) };
        }
        // Four to ten steps.
        let step = round_figures(most / 100.0, most).find(|step| most / step <= 7.0);
        let step = step.unwrap_or(most);
        Self::Linear { most: (most / step).ceil() * step, step }
    }

    fn note(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "",
            Self::Log { .. } => " (log scale)",
        }
    }

    fn y(&self, figure: f64) -> f64 {
        let part = match self {
            Self::Linear { most, .. } => figure / most,
            Self::Log { least, most } => (figure / least).log10() / (most / least).log10(),
        };
        BOTTOM - part * (BOTTOM - TOP)
    }

    /// Figures that have a line, and whether they have a label.
    fn ticks(&self) -> Vec<(f64, bool)> {
        match *self {
            Self::Linear { most, step } => {
                let count = (most / step).round() as u32;
                (0..=count).map(|tick| (f64::from(tick) * step, true)).collect()
            }
            Self::Log { least, most } => {
                let is_short = most / least < 150.0;
                let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
                let all = powers.flat_map(|power| {
                    (1..10).map(move |times| (f64::from(times) * 10_f64.powi(power), times))
                });
                all.filter(|(figure, _)| (least * 0.999..=most * 1.001).contains(figure))
                    .map(|(figure, times)| {
                        (figure, times == 1 || is_short && matches!(times, 2 | 5))
                    })
                    .collect()
            }
        }
    }
}

/// 1, 2 and 5 times the powers of ten, from below `least` to above `most`.
fn round_figures(least: f64, most: f64) -> impl DoubleEndedIterator<Item = f64> {
    let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let all: Vec<_> =
        powers.flat_map(|p| [1.0, 2.0, 5.0].map(|times| times * 10_f64.powi(p))).collect();
    all.into_iter()
}

/// `0.01`, `5`, `10,000`.
fn tick_label(figure: f64) -> String {
    if figure >= 1.0 || figure == 0.0 {
        return grouped(figure.round() as u64);
    }
    format!("{figure:.6}").trim_end_matches('0').to_owned()
}

/// The label of the horizontal axis. Places at equal ratios are a logarithmic scale.
fn along(chart: &Chart) -> String {
    let places = chart.at.iter().map(|at| at.replace(',', "").parse::<f64>().ok());
    let places: Option<Vec<_>> = places.collect();
    let is_log = places.is_some_and(|places| {
        let ratios: Vec<_> = places.windows(2).map(|two| two[1] / two[0]).collect();
        ratios.len() > 1 && ratios.iter().all(|ratio| (ratio / ratios[0] - 1.0).abs() < 1e-6)
    });
    format!("{}{}", chart.along, if is_log { " (log scale)" } else { "" })
}

fn x(chart: &Chart, place: usize) -> f64 {
    let last = chart.at.len().saturating_sub(1).max(1);
    LEFT + 20.0 + (RIGHT - LEFT - 30.0) * place as f64 / last as f64
}

fn draw_axes(svg: &mut String, chart: &Chart, scale: &Scale) {
    for (figure, has_label) in scale.ticks() {
        let y = scale.y(figure);
        let colour = if has_label { EDGE } else { GRID };
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\"/>"
        );
        if has_label {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12.5\" text-anchor=\"end\" fill=\"{MUTED}\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                tick_label(figure),
            );
        }
    }
    for (place, at) in chart.at.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12.5\" text-anchor=\"middle\" fill=\"{MUTED}\">{}</text>",
            x(chart, place),
            BOTTOM + 20.0,
            escaped(at),
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12.5\" text-anchor=\"middle\" fill=\"{INK}\">{}</text>",
        f64::midpoint(LEFT, RIGHT),
        BOTTOM + 43.0,
        escaped(&along(chart)),
    );
}

/// Draws a line and returns the height at which it ends. A failed figure is a gap.
fn draw_line(
    svg: &mut String,
    chart: &Chart,
    line: &Line,
    scale: &Scale,
    colour: &str,
) -> Option<f64> {
    let (width, dashes) = match line.role {
        Role::Ours => (2.8, ""),
        Role::Limit => (1.6, " stroke-dasharray=\"5 4\""),
        Role::Variant | Role::Peer => (1.6, ""),
    };
    let mut path = String::new();
    let mut points = String::new();
    let mut end = None;
    let mut is_gap = true;
    for (place, spot) in line.spots.iter().enumerate() {
        let Some(spot) = spot.filter(|spot| spot.median > 0.0) else {
            is_gap = true;
            continue;
        };
        let (x, y) = (x(chart, place), scale.y(spot.median));
        let _ = write!(path, "{}{x:.1} {y:.1}", if is_gap { "M" } else { "L" });
        let _ = writeln!(
            points,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\" fill=\"{colour}\"><title>{}: {}</title></circle>",
            escaped(&line.name),
            escaped(&chart.unit.human(spot.median)),
        );
        if spot.least > 0.0 && spot.least < spot.most {
            // What is beyond the axis is cut off.
            let [from, to] = [spot.least, spot.most].map(|f| scale.y(f).clamp(TOP, BOTTOM));
            let _ = writeln!(
                points,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{from:.1}\" y2=\"{to:.1}\" stroke=\"{colour}\" opacity=\"0.5\"/>"
            );
        }
        (is_gap, end) = (false, Some(y));
    }
    let _ = writeln!(
        svg,
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dashes}/>"
    );
    svg.push_str(&points);
    end
}

/// Writes the names at the ends of their lines, without overlap.
fn draw_names(svg: &mut String, mut names: Vec<(f64, &str, &str, Role)>) {
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut heights: Vec<f64> = Vec::new();
    for (y, ..) in &names {
        let free = heights.last().map_or(f64::NEG_INFINITY, |last| last + NAME_HEIGHT);
        heights.push(y.max(free));
    }
    // Names that do not fit below move up.
    let mut lowest = BOTTOM + 4.0;
    for height in heights.iter_mut().rev() {
        *height = height.min(lowest);
        lowest = *height - NAME_HEIGHT;
    }
    for ((y, name, colour, role), height) in names.iter().zip(heights) {
        let weight = if *role == Role::Ours { " font-weight=\"600\"" } else { "" };
        let name = role.title(name);
        let _ = writeln!(
            svg,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{height:.1}\" stroke=\"{colour}\" stroke-width=\"0.8\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" fill=\"{colour}\"{weight}>{}</text>",
            RIGHT - 4.0,
            RIGHT + 10.0,
            RIGHT + 14.0,
            height + 4.0,
            escaped(&name),
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{chart, line};
    use super::*;

    #[test]
    fn a_plot_has_a_line_and_a_name_for_each_contestant_and_gaps_where_one_failed() {
        let svg = plot(&chart());
        assert_eq!(svg.matches("<path").count(), 3, "{svg}");
        assert_eq!(svg.matches("<circle").count(), 5, "{svg}");
        assert!(svg.contains("bare &lt;&amp;&gt; (limit)"), "{svg}");
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }

    #[test]
    fn axes_name_their_units_and_say_if_they_are_logarithmic() {
        let mut chart = chart();
        let svg = plot(&chart);
        assert!(svg.contains(">messages per second (log scale), higher is better<"), "{svg}");
        assert!(svg.contains(">callers<"), "two places have no scale: {svg}");
        chart.at = ["1", "1,000", "1,000,000"].map(str::to_owned).to_vec();
        assert_eq!(along(&chart), "callers (log scale)");
        chart.at = ["p50", "p90", "p99"].map(str::to_owned).to_vec();
        assert_eq!(along(&chart), "callers");
    }

    #[test]
    fn only_the_best_peers_are_drawn() {
        let mut chart = chart();
        for (name, rate) in [("a", 10.0), ("b", 40.0), ("c", 30.0), ("d", 20.0)] {
            chart.lines.push(line(name, Role::Peer, [Some(rate), Some(rate)]));
        }
        let names: Vec<_> = drawn(&chart).iter().map(|line| &line.name[..]).collect();
        // One figure of "slow" is missing.
        assert_eq!(names, ["Pillarbox", "bare <&>", "b", "c", "d"]);
    }

    #[test]
    fn names_do_not_overlap_and_stay_in_the_picture() {
        let mut svg = String::new();
        draw_names(&mut svg, (0..12).map(|_| (BOTTOM, "n", MUTED, Role::Peer)).collect());
        let heights: Vec<f64> = svg
            .lines()
            .filter_map(|line| line.split("<text x=").nth(1)?.split("y=\"").nth(1))
            .filter_map(|rest| rest.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(heights.len(), 12);
        assert!(heights.windows(2).all(|two| two[1] - two[0] >= NAME_HEIGHT - 0.2), "{heights:?}");
        assert!(heights.iter().all(|height| *height < BOTTOM + 10.0), "{heights:?}");
    }

    #[test]
    fn a_scale_holds_all_figures() {
        let log = Scale::of(&[3.0, 45_000.0]);
        assert_eq!(log, Scale::Log { least: 2.0, most: 50_000.0 });
        assert!((log.y(2.0) - BOTTOM).abs() < 1e-9 && (log.y(5e4) - TOP).abs() < 1e-9);
        let linear = Scale::of(&[345e3, 2.73e6]);
        assert_eq!(linear, Scale::Linear { most: 3e6, step: 5e5 });
        assert!((linear.y(0.0) - BOTTOM).abs() < 1e-9 && (linear.y(3e6) - TOP).abs() < 1e-9);
        assert_eq!([0.05, 1.0, 5e5].map(tick_label).join(" "), "0.05 1 500,000");
    }
}
