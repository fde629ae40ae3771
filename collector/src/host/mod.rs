//! The machine as a whole, and which of its processes a session is about.

pub mod machine_time;
pub mod membership;
pub mod selection;
pub mod users;
