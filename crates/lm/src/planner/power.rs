//! The energy that the processors of this machine have taken, as Linux reads it from their counters (RAPL, powercap).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Where the counters are.
const POWERCAP: &str = "/sys/class/powercap";

/// A measurement that has begun.
pub(super) struct Power {
    begin: Instant,
    /// The counter of each package with its value, and where it begins anew.
    counters: Vec<(PathBuf, u64, u64)>,
}

impl Power {
    /// Begins; nothing is measured where no counter can be read.
    pub fn begin() -> Power {
        Power::of(Path::new(POWERCAP))
    }

    fn of(folder: &Path) -> Power {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        // Packages are `intel-rapl:0`; their parts, which they contain, have a second number.
        let is_package =
            |name: &str| name.strip_prefix("intel-rapl:").is_some_and(|n| !n.is_empty() && !n.contains(':'));
        let packages = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_package));
        let counters = packages.filter_map(|package| {
            let path = package.path().join("energy_uj");
            Some((path.clone(), read(&path)?, read(&package.path().join("max_energy_range_uj"))?))
        });
        Power { counters: counters.collect(), begin: Instant::now() }
    }

    /// The mean power since the beginning, in watts.
    pub fn watts(&self) -> Option<f64> {
        let seconds = self.begin.elapsed().as_secs_f64();
        let mut microjoules = 0;
        for (path, before, range) in &self.counters {
            let now = read(path)?;
            microjoules +=
                if now >= *before { now - before } else { now.checked_add(range.checked_sub(*before)?)? };
        }
        (!self.counters.is_empty() && seconds > 0.0).then(|| microjoules as f64 / 1e6 / seconds)
    }
}

fn read(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_added_and_a_counter_may_begin_anew() {
        let dir = tempfile::tempdir().unwrap();
        let write = |package: &str, file: &str, value: u64| {
            let folder = dir.path().join(package);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file), format!("{value}\n")).unwrap();
        };
        for (package, at) in [("intel-rapl:0", 900), ("intel-rapl:1", 100), ("intel-rapl:0:0", 5)] {
            write(package, "energy_uj", at);
            write(package, "max_energy_range_uj", 1000);
        }
        let power = Power::of(dir.path());
        assert_eq!(power.counters.len(), 2);
        write("intel-rapl:0", "energy_uj", 100);
        write("intel-rapl:1", "energy_uj", 400);
        let begin = Power { begin: Instant::now() - std::time::Duration::from_secs(1), ..power };
        // 200 and 300 microjoules in a little more than a second.
        let watts = begin.watts().unwrap();
        assert!((300e-6..=500e-6).contains(&watts), "{watts}");
        assert_eq!(Power::of(&dir.path().join("absent")).watts(), None);
    }
}
