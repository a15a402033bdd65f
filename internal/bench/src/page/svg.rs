//! A chart as a picture: lines over places that stand side by side, figures on a scale of powers of ten.

use std::fmt::Write as _;

use crate::chart::{Chart, Line, Role};

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 430.0;
/// Where lines are, within the picture: from the left, from the top, to the right, to the bottom.
const LEFT: f64 = 74.0;
const TOP: f64 = 50.0;
const RIGHT: f64 = WIDTH - 216.0;
const BOTTOM: f64 = HEIGHT - 52.0;
/// Between the names at the ends of lines, at least.
const LINE_HEIGHT: f64 = 15.0;

/// Ours, in the red of a pillar box and its shades; then those of others.
const OURS: [&str; 4] = ["#c8102e", "#7a0a1c", "#e8743b", "#a05195"];
const OTHERS: [&str; 10] = [
    "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17a2b8", "#bcbd22", "#3b5b92",
    "#d69e2e", "#4a7c59",
];
const LIMIT: &str = "#777777";

/// The picture.
pub(super) fn plot(chart: &Chart) -> String {
    let medians = |line: &Line| line.spots.iter().flatten().map(|s| s.median).collect::<Vec<_>>();
    let figures: Vec<_> = chart.lines.iter().flat_map(medians).filter(|f| *f > 0.0).collect();
    let scale = Scale::over(&figures);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\">\n\
         <title>{title}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"15\" font-weight=\"600\" fill=\"#222222\">{title}</text>\n",
        title = escaped(&chart.title),
    );
    grid(&mut svg, chart, &scale);
    let mut labels = Vec::new();
    let (mut ours, mut others) = (OURS.iter().cycle(), OTHERS.iter().cycle());
    for line in &chart.lines {
        let colour = match line.role {
            Role::Ours => ours.next(),
            Role::Limit => Some(&LIMIT),
            Role::Peer => others.next(),
        };
        let colour = colour.unwrap_or(&LIMIT);
        if let Some(end) = draw(&mut svg, chart, line, &scale, colour) {
            labels.push((end, &line.name[..], *colour, line.role));
        }
    }
    name_lines(&mut svg, labels);
    svg + "</svg>\n"
}

/// Powers of ten from the bottom to the top.
struct Scale {
    least: i32,
    most: i32,
}

impl Scale {
    fn over(figures: &[f64]) -> Self {
        let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let most = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if figures.is_empty() {
            return Self { least: 0, most: 1 };
        }
        let least = least.log10().floor() as i32;
        Self { least, most: (most.log10().ceil() as i32).max(least + 1) }
    }

    fn y(&self, figure: f64) -> f64 {
        let part = (figure.log10() - f64::from(self.least)) / f64::from(self.most - self.least);
        BOTTOM - part * (BOTTOM - TOP)
    }
}

fn x(chart: &Chart, place: usize) -> f64 {
    let last = chart.at.len().saturating_sub(1).max(1);
    LEFT + 14.0 + (RIGHT - LEFT - 28.0) * place as f64 / last as f64
}

fn grid(svg: &mut String, chart: &Chart, scale: &Scale) {
    for power in scale.least..=scale.most {
        let figure = 10_f64.powi(power);
        let (y, label) = (scale.y(figure), escaped(&chart.unit.human(figure)));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555555\">{label}</text>",
            LEFT - 6.0,
            y + 4.0,
        );
        if power < scale.most {
            for step in 2..10 {
                let y = scale.y(figure * f64::from(step));
                let _ = writeln!(
                    svg,
                    "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#f3f3f3\"/>"
                );
            }
        }
    }
    for (place, at) in chart.at.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555555\">{}</text>",
            x(chart, place),
            BOTTOM + 18.0,
            escaped(at),
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#222222\">{}</text>",
        f64::midpoint(LEFT, RIGHT),
        BOTTOM + 38.0,
        escaped(&chart.along),
    );
}

/// Draws a line with its spots, and says at which height it ends. A failed spot is a gap.
fn draw(svg: &mut String, chart: &Chart, line: &Line, scale: &Scale, colour: &str) -> Option<f64> {
    let (width, dashes) = match line.role {
        Role::Ours => (2.6, ""),
        Role::Limit => (1.6, " stroke-dasharray=\"5 4\""),
        Role::Peer => (1.6, ""),
    };
    let mut path = String::new();
    let mut end = None;
    let mut is_gap = true;
    for (place, spot) in line.spots.iter().enumerate() {
        let Some(spot) = spot.filter(|spot| spot.median > 0.0) else {
            is_gap = true;
            continue;
        };
        let (x, y) = (x(chart, place), scale.y(spot.median));
        let _ = write!(path, "{}{x:.1} {y:.1}", if is_gap { "M" } else { "L" });
        let figure = escaped(&chart.unit.human(spot.median));
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{}: {figure}</title></circle>",
            escaped(&line.name),
        );
        if spot.least > 0.0 && spot.least < spot.most {
            let (from, to) = (scale.y(spot.least), scale.y(spot.most));
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{from:.1}\" y2=\"{to:.1}\" stroke=\"{colour}\" stroke-width=\"1\" opacity=\"0.6\"/>"
            );
        }
        (is_gap, end) = (false, Some(y));
    }
    let _ = writeln!(
        svg,
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dashes}/>"
    );
    end
}

/// Writes the names beside the ends of their lines, apart from each other.
fn name_lines(svg: &mut String, mut labels: Vec<(f64, &str, &str, Role)>) {
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut heights: Vec<f64> = Vec::new();
    for (y, ..) in &labels {
        let free = heights.last().map_or(f64::NEG_INFINITY, |last| last + LINE_HEIGHT);
        heights.push(y.max(free));
    }
    // What does not fit below moves up again.
    let mut lowest = BOTTOM + 4.0;
    for height in heights.iter_mut().rev() {
        *height = height.min(lowest);
        lowest = *height - LINE_HEIGHT;
    }
    for ((y, name, colour, role), height) in labels.iter().zip(heights) {
        let weight = if *role == Role::Ours { "600" } else { "400" };
        let limit = if *role == Role::Limit { " (limit)" } else { "" };
        let _ = writeln!(
            svg,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{height:.1}\" stroke=\"{colour}\" stroke-width=\"0.7\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" font-weight=\"{weight}\">{}{limit}</text>",
            RIGHT - 8.0,
            RIGHT + 8.0,
            RIGHT + 12.0,
            height + 4.0,
            escaped(name),
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::chart;
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
    fn names_keep_apart_and_stay_in_the_picture() {
        let mut svg = String::new();
        name_lines(&mut svg, (0..20).map(|_| (BOTTOM, "n", LIMIT, Role::Peer)).collect());
        let heights: Vec<f64> = svg
            .lines()
            .filter_map(|line| line.split("<text x=").nth(1)?.split("y=\"").nth(1))
            .filter_map(|rest| rest.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(heights.len(), 20);
        assert!(heights.windows(2).all(|two| two[1] - two[0] >= LINE_HEIGHT - 0.2), "{heights:?}");
        assert!(heights.iter().all(|height| *height < BOTTOM + 10.0), "{heights:?}");
    }

    #[test]
    fn a_scale_holds_all_figures() {
        let scale = Scale::over(&[3.0, 45_000.0]);
        assert_eq!((scale.least, scale.most), (0, 5));
        assert!((scale.y(1.0) - BOTTOM).abs() < 1e-9 && (scale.y(1e5) - TOP).abs() < 1e-9);
    }
}
