//! Plots, as inline SVG.

use std::fmt::Write;

use super::super::table::{milliseconds, percent, points};
use super::{Escaped, EvalReport};

/// Width of a plot, in SVG units.
const WIDTH: f64 = 560.0;
/// Space for the names of experiments.
const LEFT: f64 = 130.0;
const RIGHT: f64 = 60.0;
const ROW: f64 = 30.0;
/// Number of colours for experiments.
const COLOURS: usize = 8;
/// Number of bars of a distribution.
const BINS: usize = 10;

/// Candidate distances between two grid lines of a difference.
const STEPS: [f64; 6] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.25];

/// Returns the colour of an experiment.
pub(super) fn colour(experiment: usize) -> String {
    format!("var(--c{})", experiment % COLOURS)
}

/// Plots the pass rate of each experiment, with intervals.
pub(super) fn pass_rates(report: &EvalReport) -> Option<String> {
    report.pass_rate?;
    let mut svg = Svg::new(report.experiments.len() as f64 * ROW + 24.0, "Pass rate by experiment");
    let x = Scale { from: (0.0, 1.0), to: (LEFT, WIDTH - RIGHT) };
    let bottom = report.experiments.len() as f64 * ROW;
    for tick in 0..=4 {
        let share = f64::from(tick) / 4.0;
        svg.vertical(x.at(share), 0.0, bottom, "grid");
        svg.text(x.at(share), bottom + 16.0, "middle", "faint", &format!("{:.0}%", share * 100.0));
    }
    for (place, experiment) in report.experiments.iter().enumerate() {
        let middle = (place as f64 + 0.5) * ROW;
        svg.label(middle, &experiment.name);
        let tally = &experiment.tally;
        let Some(rate) = tally.pass_rate else { continue };
        let tip = format!("{}: {} of {}", experiment.name, tally.passed, tally.total);
        svg.bar(x.at(0.0), middle - 9.0, x.at(rate) - x.at(0.0), 18.0, place, &tip);
        if let Some((low, high)) = tally.pass_rate_low.zip(tally.pass_rate_high) {
            svg.whisker(x.at(low), x.at(high), middle);
        }
        svg.text(WIDTH - RIGHT + 8.0, middle + 4.0, "start", "", &percent(rate));
    }
    Some(svg.finish())
}

/// Plots the distribution of scores: one row per experiment, all with the same scale.
pub(super) fn scores(report: &EvalReport) -> Option<String> {
    let mut bins = vec![[0_usize; BINS]; report.experiments.len()];
    for (bins, experiment) in bins.iter_mut().zip(&report.experiments) {
        let scores = report.samples_of(&experiment.name).filter_map(|sample| sample.score);
        scores.for_each(|score| bins[bin(score)] += 1);
    }
    let most = bins.iter().flatten().copied().max().filter(|most| *most > 0)?;
    const HEIGHT: f64 = 64.0;
    const GAP: f64 = 22.0;
    let rows = report.experiments.len() as f64;
    let mut svg = Svg::new(rows * (HEIGHT + GAP) + 24.0, "Distribution of scores by experiment");
    let x = Scale { from: (0.0, 1.0), to: (LEFT, WIDTH - RIGHT) };
    for (place, experiment) in report.experiments.iter().enumerate() {
        let bottom = (place as f64 + 1.0) * (HEIGHT + GAP);
        svg.label(bottom - HEIGHT / 2.0, &experiment.name);
        svg.horizontal(LEFT, WIDTH - RIGHT, bottom);
        for (bin, &count) in bins[place].iter().enumerate() {
            let (from, to) = (bin as f64 / BINS as f64, (bin + 1) as f64 / BINS as f64);
            let height = count as f64 / most as f64 * HEIGHT;
            let until = if bin + 1 == BINS { "up to" } else { "below" };
            let tip = format!("{}: {count} from {from:.1} to {until} {to:.1}", experiment.name);
            let (left, right) = (x.at(from), x.at(to));
            svg.bar(left + 1.0, bottom - height, right - left - 2.0, height, place, &tip);
            if count > 0 {
                let middle = f64::midpoint(left, right);
                svg.text(middle, bottom - height - 2.0, "middle", "faint", &count.to_string());
            }
        }
    }
    let y = rows * (HEIGHT + GAP) + 16.0;
    for tick in 0..=5 {
        let score = f64::from(tick) / 5.0;
        svg.text(x.at(score), y, "middle", "faint", &format!("{score:.1}"));
    }
    Some(svg.finish())
}

/// Returns the bar of a score. The last bar includes 1.
fn bin(score: f64) -> usize {
    // 0.3 * 10 is a little less than 3.
    ((score * BINS as f64 + 1e-9) as usize).min(BINS - 1)
}

/// Plots the cumulative distribution of latencies.
pub(super) fn latencies(report: &EvalReport) -> Option<String> {
    let latency = report.latency.as_ref()?;
    const HEIGHT: f64 = 200.0;
    const FLOOR: f64 = 0.001;
    let mut svg = Svg::new(HEIGHT + 40.0, "Cumulative distribution of latencies");
    let (first, last) = (latency.min_ms.max(FLOOR).log10(), latency.max_ms.max(FLOOR).log10());
    // A range of some width, even if all latencies are equal.
    let (first, last) = (first - 0.05, last.max(first + 0.3) + 0.05);
    let x = Scale { from: (first, last), to: (50.0, WIDTH - 20.0) };
    let y = Scale { from: (0.0, 1.0), to: (HEIGHT, 10.0) };
    for tick in 0..=4 {
        let share = f64::from(tick) / 4.0;
        svg.horizontal(50.0, WIDTH - 20.0, y.at(share));
        svg.text(44.0, y.at(share) + 4.0, "end", "faint", &format!("{:.0}%", share * 100.0));
    }
    for tick in ticks(first, last) {
        svg.vertical(x.at(tick.log10()), 10.0, HEIGHT, "grid");
        svg.text(x.at(tick.log10()), HEIGHT + 18.0, "middle", "faint", &round(tick));
    }
    for (place, experiment) in report.experiments.iter().enumerate() {
        let samples = report.samples_of(&experiment.name);
        let mut times: Vec<_> = samples.filter_map(|sample| sample.latency_ms).collect();
        if times.is_empty() {
            continue;
        }
        times.sort_unstable_by(f64::total_cmp);
        let mut path = format!("M{:.1} {:.1}", x.at(times[0].max(FLOOR).log10()), y.at(0.0));
        // As many points as can be distinguished.
        let step = (times.len() / 400).max(1);
        let last = times.len() - 1;
        for place in (0..times.len()).filter(|place| place % step == 0 || *place == last) {
            let share = (place + 1) as f64 / times.len() as f64;
            let _ =
                write!(path, " H{:.1} V{:.1}", x.at(times[place].max(FLOOR).log10()), y.at(share));
        }
        svg.path(&path, place, &experiment.name);
    }
    svg.text(WIDTH / 2.0, HEIGHT + 36.0, "middle", "faint", "latency of the adapter");
    Some(svg.finish())
}

/// Returns round values for the grid lines of a logarithmic axis, about four to ten of them.
fn ticks(first: f64, last: f64) -> Vec<f64> {
    let decades = (first.floor() as i32)..=(last.ceil() as i32);
    let of = |steps: &[f64]| {
        let of_decade = |decade| steps.iter().map(move |step| step * 10_f64.powi(decade));
        let all = decades.clone().flat_map(of_decade);
        all.filter(|tick| (first..=last).contains(&tick.log10())).collect::<Vec<_>>()
    };
    let choices: [&[f64]; 3] = [&[1.0], &[1.0, 3.0], &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0]];
    let best = choices.iter().map(|steps| of(steps)).find(|ticks| ticks.len() >= 4);
    best.unwrap_or_else(|| of(choices[2]))
}

/// Formats a round time.
fn round(ms: f64) -> String {
    match ms {
        _ if ms >= 999.0 => format!("{} s", (ms / 1e3 * 1e3).round() / 1e3),
        _ if ms >= 0.999 => format!("{} ms", (ms * 1e3).round() / 1e3),
        _ => milliseconds(ms),
    }
}

/// Plots the difference in pass rate of each experiment to the first one.
pub(super) fn differences(report: &EvalReport) -> Option<String> {
    let known = report.comparisons.iter().filter_map(|one| Some((one, one.pass_rate.as_ref()?)));
    let known: Vec<_> = known.collect();
    let ends = known.iter().flat_map(|(_, one)| [one.low, one.high, Some(one.value)]);
    let far = ends.flatten().map(f64::abs).reduce(f64::max)?.max(0.05) * 1.1;
    let bottom = known.len() as f64 * ROW;
    let mut svg = Svg::new(bottom + 24.0, "Difference in pass rate to the first experiment");
    let x = Scale { from: (-far, far), to: (LEFT, WIDTH - RIGHT - 20.0) };
    let step = STEPS.into_iter().find(|step| far / step <= 4.0).unwrap_or(0.5);
    let most = (far / step) as i32;
    for tick in -most..=most {
        let value = f64::from(tick) * step;
        svg.vertical(x.at(value), 0.0, bottom, if tick == 0 { "zero" } else { "grid" });
        let label = if tick == 0 { "0".to_owned() } else { format!("{:+.0}", value * 100.0) };
        svg.text(x.at(value), bottom + 16.0, "middle", "faint", &label);
    }
    for (row, (comparison, difference)) in known.iter().enumerate() {
        let middle = (row as f64 + 0.5) * ROW;
        let place = report.experiments.iter().position(|one| one.name == comparison.candidate);
        svg.label(middle, &comparison.candidate);
        if let Some((low, high)) = difference.low.zip(difference.high) {
            svg.whisker(x.at(low), x.at(high), middle);
        }
        let tip = difference.in_words(points);
        svg.point(x.at(difference.value), middle, place.unwrap_or_default(), &tip);
        let value = format!("{:+.1} pts", difference.value * 100.0);
        svg.text(WIDTH - RIGHT - 12.0, middle + 4.0, "start", "", &value);
    }
    Some(svg.finish())
}

/// Maps values to positions on an axis.
struct Scale {
    from: (f64, f64),
    to: (f64, f64),
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let share = (value - self.from.0) / (self.from.1 - self.from.0);
        self.to.0 + share * (self.to.1 - self.to.0)
    }
}

/// Builder for an SVG image.
struct Svg(String);

impl Svg {
    fn new(height: f64, label: &str) -> Self {
        Self(format!(
            "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">\n",
            Escaped(label)
        ))
    }

    fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }

    fn bar(&mut self, x: f64, y: f64, width: f64, height: f64, experiment: usize, tip: &str) {
        let (width, height) = (width.max(0.0), height.max(0.0));
        let _ = writeln!(
            self.0,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" style=\"fill: {}\">\
             <title>{}</title></rect>",
            colour(experiment),
            Escaped(tip)
        );
    }

    fn point(&mut self, x: f64, y: f64, experiment: usize, tip: &str) {
        let _ = writeln!(
            self.0,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" style=\"fill: {}\"><title>{}</title></circle>",
            colour(experiment),
            Escaped(tip)
        );
    }

    fn path(&mut self, path: &str, experiment: usize, tip: &str) {
        let _ = writeln!(
            self.0,
            "<path d=\"{path}\" fill=\"none\" stroke-width=\"2\" style=\"stroke: {}\"><title>{}</title></path>",
            colour(experiment),
            Escaped(tip)
        );
    }

    fn whisker(&mut self, from: f64, to: f64, y: f64) {
        let (top, bottom) = (y - 5.0, y + 5.0);
        let _ = writeln!(
            self.0,
            "<path class=\"whisker\" fill=\"none\" d=\"M{from:.1} {top:.1}V{bottom:.1}M{from:.1} {y:.1}H{to:.1}M{to:.1} {top:.1}V{bottom:.1}\"/>"
        );
    }

    fn vertical(&mut self, x: f64, from: f64, to: f64, class: &str) {
        let _ = writeln!(self.0, "<path class=\"{class}\" d=\"M{x:.1} {from:.1}V{to:.1}\"/>");
    }

    fn horizontal(&mut self, from: f64, to: f64, y: f64) {
        let _ = writeln!(self.0, "<path class=\"grid\" d=\"M{from:.1} {y:.1}H{to:.1}\"/>");
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{}</text>",
            Escaped(text)
        );
    }

    /// Adds the name of an experiment, left of its row.
    fn label(&mut self, middle: f64, name: &str) {
        const MAX_CHARS: usize = 18;
        let mut short: String = name.chars().take(MAX_CHARS).collect();
        if name.chars().count() > MAX_CHARS {
            short.pop();
            short.push('…');
        }
        self.text(LEFT - 8.0, middle + 4.0, "end", "", &short);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_counted_in_its_bar() {
        assert_eq!([0.0, 0.05, 0.1, 0.3, 0.7, 0.99, 1.0].map(bin), [0, 0, 1, 3, 7, 9, 9]);
    }

    #[test]
    fn every_axis_has_some_round_ticks() {
        for (first, last) in [(-3.0, 4.0), (0.0, 0.4), (2.0, 2.4), (1.2, 1.6), (-0.05, 0.35)] {
            let ticks = ticks(first, last);
            assert!((2..=10).contains(&ticks.len()), "{first} to {last}: {ticks:?}");
        }
        assert_eq!([round(1500.0), round(3.0), round(0.03)], ["1.5 s", "3 ms", "30 µs"]);
    }
}
