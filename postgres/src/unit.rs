//! A unit as the cells know it: what its names are made of.

use monarch_model::{Epoch, MoveId, OrgId, StoreName, names};

/// One store within one move.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Unit {
    /// The move.
    pub move_id: MoveId,
    /// The organization that moves.
    pub org: OrgId,
    /// The store.
    pub store: StoreName,
}

impl Unit {
    /// The beginning that all names of the unit share, and no other unit's name has.
    pub fn prefix(&self) -> String {
        names::unit_prefix(self.move_id, &self.org, &self.store)
    }

    /// What a session of the unit's mover calls itself.
    pub fn application(&self, epoch: Epoch) -> String {
        names::application(&self.prefix(), epoch)
    }

    /// The slot that the mover of `epoch` makes.
    pub fn slot(&self, epoch: Epoch) -> String {
        names::slot(&self.prefix(), epoch)
    }

    /// The epoch that a slot's or an application's name of this unit ends in; none if the name
    /// is not of this unit.
    pub fn epoch_in(&self, name: &str) -> Option<Epoch> {
        let digits = name.strip_prefix(&self.prefix())?.strip_prefix("_e")?;
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        digits.parse().ok().map(Epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards promise 7: what is found by name is told apart from what only looks like it.
    #[test]
    fn an_epoch_is_only_read_from_a_name_of_the_same_unit() {
        let unit = |store: &str| Unit {
            move_id: "7d0f5f0e-6b0c-4f7e-9a58-0d3b3f8a1c11".parse().unwrap(),
            org: "1".parse().unwrap(),
            store: store.parse().unwrap(),
        };
        let ours = unit("default");
        assert_eq!(ours.epoch_in(&ours.slot(Epoch(12))), Some(Epoch(12)));
        assert_eq!(ours.epoch_in(&unit("other").slot(Epoch(12))), None);
        assert_eq!(ours.epoch_in(&format!("{}_e", ours.prefix())), None);
        assert_eq!(ours.epoch_in(&format!("{}_e1x", ours.prefix())), None);
        assert_eq!(ours.epoch_in(&format!("{}_ins", ours.prefix())), None);
    }
}
