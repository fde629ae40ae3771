//! Processes that a session leaves out.

/// Processes that were to be followed and are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOutPids {
    /// The kernel refuses their events.
    pub refused: Vec<u32>,
    /// The kernel did not answer in time: see [`crate::Error::NoAnswer`]. It may do so later.
    pub silent: Vec<u32>,
}
