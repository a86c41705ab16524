//! Which slots of which machines are used: `NAME[:SLOT[,SLOT …]][@NAME…]` to include or exclude, or the first so many.

/// Machines with the numbers of their slots.
pub type Slots = Vec<(String, Vec<usize>)>;

/// What is wrong with a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Both kinds at once.
    #[error("`--include` and `--exclude` are mutually exclusive")]
    Both,
    /// A machine that is not there.
    #[error("there is no machine `{0}` in the hostfile")]
    NoHost(String),
    /// A slot that is not there.
    #[error("the machine `{host}` has no slot {slot}")]
    NoSlot {
        /// The machine.
        host: String,
        /// The slot.
        slot: i64,
    },
    /// Something that is not a machine with slots.
    #[error("`{0}` is not NAME or NAME:SLOT,SLOT…")]
    BadSpec(String),
}

/// What a specification names, in the order of first mention: slots in order and each once, none for the whole machine.
/// A machine that is named both ways is meant with its slots only, as in the original.
pub fn specs(text: &str) -> Result<Vec<(&str, Vec<i64>)>, Error> {
    let mut all: Vec<(&str, Vec<i64>)> = Vec::new();
    for spec in text.split('@') {
        let bad = || Error::BadSpec(spec.to_owned());
        let (name, slots) = match spec.split_once(':') {
            None => (spec, Vec::new()),
            Some((name, slots)) => {
                let slot = |text: &str| text.trim().parse::<i64>().map_err(|_| bad());
                (name, slots.split(',').map(slot).collect::<Result<_, _>>()?)
            }
        };
        match all.iter_mut().find(|(other, _)| *other == name) {
            Some((_, before)) => before.extend(slots),
            None => all.push((name, slots)),
        }
    }
    for (_, slots) in &mut all {
        slots.sort_unstable();
        slots.dedup();
    }
    Ok(all)
}

/// All slots of all machines.
pub fn all(pool: &[(String, usize)]) -> Slots {
    pool.iter().map(|(host, slots)| (host.clone(), (0..*slots).collect())).collect()
}

/// The slots that are left, machines in the order of the hostfile; without a filter, all.
pub fn apply(pool: &[(String, usize)], include: &str, exclude: &str) -> Result<Slots, Error> {
    let (text, keeps) = match (include, exclude) {
        ("", "") => return Ok(all(pool)),
        (text, "") => (text, true),
        ("", text) => (text, false),
        _ => return Err(Error::Both),
    };
    let specs = specs(text)?;
    for (name, slots) in &specs {
        let Some((host, there)) = pool.iter().find(|(host, _)| host == name) else {
            return Err(Error::NoHost((*name).to_owned()));
        };
        let is_there = |slot: &i64| usize::try_from(*slot).is_ok_and(|slot| slot < *there);
        if let Some(slot) = slots.iter().find(|slot| !is_there(slot)) {
            return Err(Error::NoSlot { host: host.clone(), slot: *slot });
        }
    }
    let mut left = all(pool);
    for (host, there) in &mut left {
        match (specs.iter().find(|(name, _)| name == host), keeps) {
            (Some((_, slots)), true) if slots.is_empty() => {}
            (Some((_, slots)), true) => there.retain(|slot| slots.contains(&(*slot as i64))),
            (None, true) => there.clear(),
            (Some((_, slots)), false) if slots.is_empty() => there.clear(),
            (Some((_, slots)), false) => there.retain(|slot| !slots.contains(&(*slot as i64))),
            (None, false) => {}
        }
    }
    left.retain(|(_, slots)| !slots.is_empty());
    Ok(left)
}

/// The first machines, and so many slots of each, whatever the hostfile says of their number; what is not positive
/// limits nothing.
pub fn trim(mut slots: Slots, num_nodes: i64, num_gpus: i64) -> Slots {
    if let Ok(nodes @ 1..) = usize::try_from(num_nodes) {
        slots.truncate(nodes);
    }
    if let Ok(gpus @ 1..) = usize::try_from(num_gpus) {
        slots.iter_mut().for_each(|(_, slots)| *slots = (0..gpus).collect());
    }
    slots
}

/// Machines with all their slots in one word, for the launcher of another machine.
pub fn world(slots: &Slots) -> String {
    let machine = |(host, slots): &(String, Vec<usize>)| {
        let slots: Vec<String> = slots.iter().map(usize::to_string).collect();
        format!("{host}:{}", slots.join(","))
    };
    slots.iter().map(machine).collect::<Vec<_>>().join("@")
}

/// The machines of such a word.
pub fn of_world(text: &str) -> Result<Slots, Error> {
    let machine = |spec: &str| {
        let bad = || Error::BadSpec(spec.to_owned());
        let (host, slots) = spec.rsplit_once(':').ok_or_else(bad)?;
        let numbers = slots.split(',').filter(|slot| !slot.is_empty()).map(str::parse);
        Ok((host.to_owned(), numbers.collect::<Result<_, _>>().map_err(|_| bad())?))
    };
    text.split('@').map(machine).collect()
}
