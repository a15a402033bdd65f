//! Memory of the process that collects.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{CHILD, ours};
use crate::measure::{Case, Result, on_two_threads};
use crate::place;
use crate::process::{in_child, peak_bytes};
use crate::report::{Unit, grouped};
use crate::store::{Address, Kind, Store};

/// The case, with a child for each run.
pub(super) fn case(samples: u64) -> Case {
    let name = format!("peak memory of the collector, {} samples", grouped(samples));
    Case::new(name, Unit::Bytes, move || peak(samples))
        .against(format!("Pillarbox, {} samples", grouped(samples / 10)), move || {
            peak(samples / 10)
        })
}

/// Has all samples worked on, and then a child collect the results.
fn peak(samples: u64) -> Result<f64> {
    let store = Store::fresh(Kind::Sqlite)?;
    let home = place::fresh()?;
    let address = store.address();
    on_two_threads(async {
        let backend = address.backend().await?;
        ours::submit(&backend, home.path(), &ours::dataset(samples)?).await?;
        let requests = ours::requests(&backend)?;
        let running = ours::start(&backend)?;
        while requests.counts().await?.total() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        running.stop().await?;
        backend.close().await;
        Ok(())
    })?;
    let home = home.path().to_str().ok_or("the path of the run is not text")?;
    in_child(&[CHILD, "collect", &address.argument()?, home, &samples.to_string()])
}

/// The arguments of the child process.
#[derive(Debug, Args)]
pub(crate) struct Collecting {
    address: Address,
    home: PathBuf,
    samples: u64,
}

impl Collecting {
    pub(super) fn measure(self) -> Result<f64> {
        on_two_threads(async {
            let backend = self.address.backend().await?;
            let report = ours::collect(&backend, &self.home, self.samples).await?;
            std::fs::write(self.home.join("report.html"), report.to_html())?;
            backend.close().await;
            Ok(peak_bytes()? as f64)
        })
    }
}
