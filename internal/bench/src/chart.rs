//! Charts: one figure of several contestants as a load grows.
//!
//! At each place the contestants run in turns, in rounds that each start with another contestant. A
//! contestant's figure is the median of its rounds. Every run checks its own work. If ours or a limit fails,
//! the chart fails. If a peer fails, the chart reports it and continues without that peer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::measure::{Result, at_percent, median, micros};
use crate::progress;
use crate::report::Unit;

/// The percentiles of a distribution.
const PERCENTS: [f64; 9] = [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9];

/// The figures of all contestants at all places.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Chart {
    /// A short name, for files and anchors.
    pub(crate) id: String,
    pub(crate) title: String,
    /// What is measured, and under which settings.
    pub(crate) about: String,
    /// The quantity that grows: the label of the horizontal axis.
    pub(crate) along: String,
    /// Its values: the columns of the table.
    pub(crate) at: Vec<String>,
    pub(crate) unit: Unit,
    pub(crate) lines: Vec<Line>,
}

/// One contestant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Its version, its configuration, and how it stores messages.
    pub(crate) settings: String,
    /// The figure at each place, or none where it failed.
    pub(crate) spots: Vec<Option<Spot>>,
    /// The reasons of its failures.
    pub(crate) failures: Vec<String>,
}

/// The role of a contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Pillarbox with default settings.
    Ours,
    /// Pillarbox with other settings, or under other conditions.
    Variant,
    /// The same work without the guarantees of a queue.
    Limit,
    Peer,
}

impl Role {
    /// The name of a contestant with this role, as tables show it.
    pub(crate) fn title(self, name: &str) -> String {
        match self {
            Self::Limit => format!("{name} (limit)"),
            Self::Ours | Self::Variant | Self::Peer => name.to_owned(),
        }
    }
}

/// The median, the least and the most of the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spot {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spot {
    fn of(rounds: &[f64]) -> Option<Self> {
        let least = rounds.iter().copied().reduce(f64::min)?;
        let most = rounds.iter().copied().reduce(f64::max)?;
        Some(Self { median: median(rounds.to_vec()), least, most })
    }
}

/// A chart before it is measured.
pub(crate) struct Contest {
    chart: Chart,
    entrants: Vec<Box<Run>>,
}

/// Runs a contestant at one of the places.
type Run = dyn FnMut(usize) -> Result<Sample>;

/// The result of one run.
#[derive(Debug)]
pub(crate) struct Sample {
    figure: f64,
    /// The latencies of the run, for a distribution.
    each: Vec<Duration>,
    /// Version and settings, if the run reports them.
    settings: Option<String>,
}

impl From<f64> for Sample {
    fn from(figure: f64) -> Self {
        Self { figure, each: Vec::new(), settings: None }
    }
}

impl Sample {
    pub(crate) fn with_times(figure: f64, each: Vec<Duration>) -> Self {
        Self { figure, each, settings: None }
    }

    pub(crate) fn settings(self, settings: String) -> Self {
        Self { settings: Some(settings), ..self }
    }
}

/// A measured chart, with the latencies of all runs.
pub(crate) struct MeasuredChart {
    pub(crate) chart: Chart,
    /// By line and place.
    times: Vec<Vec<Vec<Duration>>>,
}

impl Contest {
    pub(crate) fn new(
        id: impl Into<String>,
        title: impl Into<String>,
        about: impl Into<String>,
        unit: Unit,
    ) -> Self {
        let (along, at, lines) = (String::new(), Vec::new(), Vec::new());
        let (id, title, about) = (id.into(), title.into(), about.into());
        let chart = Chart { id, title, about, along, at, unit, lines };
        Self { chart, entrants: Vec::new() }
    }

    /// Sets the quantity that grows, and its values.
    pub(crate) fn along(mut self, what: &str, at: impl Iterator<Item = String>) -> Self {
        self.chart.along = what.to_owned();
        self.chart.at = at.collect();
        self
    }

    /// Adds a contestant. `run` gets the index of a place.
    pub(crate) fn enter<S: Into<Sample>>(
        mut self,
        role: Role,
        name: impl Into<String>,
        settings: impl Into<String>,
        mut run: impl FnMut(usize) -> Result<S> + 'static,
    ) -> Self {
        let (name, settings) = (name.into(), settings.into());
        let (spots, failures) = (Vec::new(), Vec::new());
        self.chart.lines.push(Line { name, role, settings, spots, failures });
        self.entrants.push(Box::new(move |place| run(place).map(Into::into)));
        self
    }

    pub(crate) fn title(&self) -> &str {
        &self.chart.title
    }

    /// Runs all contestants at all places.
    pub(crate) fn run(mut self, suite: &str, rounds: usize) -> Result<MeasuredChart> {
        let count = self.entrants.len();
        let mut times = vec![Vec::new(); count];
        for (place, at) in self.chart.at.clone().iter().enumerate() {
            let at = format!("{}, {at} {}", self.chart.title, self.chart.along);
            progress::case(suite, &at);
            let mut figures = vec![Vec::new(); count];
            let mut times_here = vec![Vec::new(); count];
            let mut has_failed = vec![false; count];
            for turn in 0..rounds * count {
                let who = (turn / count + turn % count) % count;
                if has_failed[who] {
                    continue;
                }
                let line = &mut self.chart.lines[who];
                match self.entrants[who](place) {
                    Ok(Sample { figure, each, settings }) => {
                        figures[who].push(figure);
                        times_here[who].extend(each);
                        line.settings = settings.unwrap_or_else(|| line.settings.clone());
                    }
                    Err(error) if line.role == Role::Peer => {
                        let failure = format!("{at}: {error}");
                        progress::say(format_args!("{suite}: {} failed: {failure}", line.name));
                        line.failures.push(failure);
                        has_failed[who] = true;
                        figures[who].clear();
                        times_here[who].clear();
                    }
                    Err(error) => return Err(format!("{at}: {}: {error}", line.name).into()),
                }
            }
            for (line, figures) in self.chart.lines.iter_mut().zip(&figures) {
                line.spots.push(Spot::of(figures));
            }
            for (times, here) in times.iter_mut().zip(times_here) {
                times.push(here);
            }
            progress::step();
        }
        Ok(MeasuredChart { chart: self.chart, times })
    }
}

impl MeasuredChart {
    /// The distribution of the latencies at one place, over all rounds.
    pub(crate) fn distribution(&self, place: usize, id: &str, title: &str, about: &str) -> Chart {
        let lines = self.chart.lines.iter().zip(&self.times).map(|(line, times)| {
            let mut times = times[place].clone();
            times.sort_unstable();
            let spot = |percent| {
                let median = micros(at_percent(&times, percent)?);
                Some(Spot { median, least: median, most: median })
            };
            Line { spots: PERCENTS.map(spot).to_vec(), failures: Vec::new(), ..line.clone() }
        });
        Chart {
            id: id.to_owned(),
            title: title.to_owned(),
            about: about.to_owned(),
            along: "percentile".to_owned(),
            at: PERCENTS.map(|percent| format!("p{percent}")).to_vec(),
            unit: Unit::Micros,
            lines: lines.collect(),
        }
    }
}

impl Chart {
    /// Returns how many times better ours is than `other` at a place, if both have a figure and the chart has
    /// exactly one line of ours.
    pub(crate) fn ratio(&self, other: &Line, place: usize) -> Option<f64> {
        let mut ours = self.lines.iter().filter(|line| line.role == Role::Ours);
        let (Some(ours), None) = (ours.next(), ours.next()) else { return None };
        let figure = |line: &Line| Some((*line.spots.get(place)?)?.median);
        Some(crate::report::ratio(self.unit, figure(ours)?, figure(other)?))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    fn contest() -> Contest {
        let places = ["1", "2"].map(str::to_owned).into_iter();
        Contest::new("id", "title", "about", Unit::MessagesPerSecond).along("callers", places)
    }

    #[test]
    fn contestants_take_turns_and_the_figure_is_the_median() {
        let log = Rc::new(RefCell::new(String::new()));
        let entrant = |letter: char| {
            let (log, mut round) = (log.clone(), 0.0);
            move |place: usize| {
                log.borrow_mut().push_str(&format!("{letter}{place}"));
                round += 1.0;
                Ok(round)
            }
        };
        let contest = contest().enter(Role::Ours, "a", "", entrant('a'));
        let measured = contest.enter(Role::Limit, "b", "", entrant('b')).run("suite", 3).unwrap();
        assert_eq!(*log.borrow(), "a0b0b0a0a0b0a1b1b1a1a1b1");
        let spot = Spot { median: 5.0, least: 4.0, most: 6.0 };
        assert_eq!(measured.chart.lines[0].spots[1], Some(spot));
    }

    #[test]
    fn a_failed_peer_is_reported_and_a_failure_of_ours_fails_the_chart() {
        let fails = |place: usize| if place == 1 { Err("lost 3".into()) } else { Ok(2.0) };
        let ours = |_: usize| Ok(4.0);
        let with_peer =
            contest().enter(Role::Ours, "ours", "", ours).enter(Role::Peer, "p", "", fails);
        let chart = with_peer.run("suite", 2).unwrap().chart;
        assert_eq!(chart.lines[1].spots[1], None);
        assert!(chart.lines[1].failures[0].contains("lost 3"), "{chart:?}");
        assert_eq!(chart.ratio(&chart.lines[1], 0), Some(2.0));
        assert_eq!(chart.ratio(&chart.lines[1], 1), None);
        assert!(contest().enter(Role::Ours, "ours", "", fails).run("suite", 2).is_err());
    }

    #[test]
    fn a_distribution_covers_all_rounds() {
        let mut from = 0;
        let run = move |_: usize| {
            from += 50;
            let each = (from - 49..=from).map(Duration::from_micros).collect();
            Ok(Sample::with_times(1.0, each))
        };
        let measured = contest().enter(Role::Ours, "ours", "", run).run("suite", 2).unwrap();
        let chart = measured.distribution(0, "d", "", "");
        let spots: Vec<_> = chart.lines[0].spots.iter().map(|spot| spot.unwrap().median).collect();
        assert_eq!(spots, [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 100.0]);
    }
}
