//! The heart of `ccsd`: marked histories, the context table, profiles, their file format and their views.
//!
//! Nothing here touches the operating system. A collector resolves every sample to a stack of [`CostCentreId`]s, pushes
//! them root first through [`ContextTable::push`] and charges the sample's weight with [`Profile::charge`]. At every
//! interval [`Profile::take_update`] gives an [`Update`], which an [`Encoder`] writes to a file or a socket; a reader
//! applies the same updates to a [`Profile`] of its own and shows it through [`view`].
//!
//! The method is aprof's: J. M. Spivey, *Fast, accurate call graph profiling*, Software: Practice and Experience 34
//! (2004). Steps A1-A5 (histories) and B1-B3 (contexts) are cited by those names.
#![forbid(unsafe_code)]

mod accounting;
mod causes;
pub mod cgroup;
mod charges;
pub mod codec;
mod context;
mod crash;
mod error;
pub mod export;
mod fair_length;
mod fold;
mod gaps;
mod generation;
mod hash;
mod history;
mod ids;
pub mod import;
pub mod json;
mod labels;
mod later_names;
mod limits;
mod marked;
mod merge;
mod model;
mod name;
mod name_later;
mod naming;
mod next_generation;
mod not_sampled;
pub mod notes;
pub mod numbers;
mod offsets;
pub mod origin;
mod own_cpu;
pub mod own_names;
mod pace;
mod profile;
pub mod query;
mod readable;
mod remap;
mod routed;
mod routes;
mod selection;
mod shares;
mod shed;
mod squares;
mod stream;
mod symbols;
mod text;
mod timeline;
mod uncertain;
mod update;
mod update_merge;
pub mod view;
mod walk;

pub use accounting::{Accounting, OwnCost, StackCounts, TruncationReason, Truncations};
pub use causes::{ByCause, Cause};
pub use codec::{
    Decoded, Decoder, Encoder, Intervals, Loaded, Recovery, TimeWindow, read_profile, read_profile_with, read_window,
};
pub use context::{ContextStats, ContextTable};
pub use crash::{
    CORE_SIGNALS, Crash, EarlierStack, FrameInfo, MAX_CRASH_FRAMES, MAX_CRASH_INNER, MAX_CRASH_OUTER,
    MAX_SESSION_CRASHES, signal_name, signal_reason,
};
pub use error::{DecodeError, EncodeError, MergeError, UpdateError};
pub use fold::fold;
pub use history::{History, HistoryEntry, Item};
pub use ids::{ContextId, CostCentreId, ImageId, LineId, ProcessId, RouteId, ThreadId};
pub use labels::{Definition, Labels};
pub use later_names::{LaterNames, NamedSite, RenamedStream};
pub use limits::{
    MAX_HISTORY_ENTRIES, MAX_METRICS, MAX_RECORD_BYTES, MAX_STRING_BYTES, MIN_CONTEXT_BYTES, ProfileLimits,
};
pub use merge::{Canonical, ChargeKey, ChargeSums, CostCentreKey, SiteKey};
pub use model::{CostCentre, Image, Line, Membership, Metric, Process, SessionInfo, Thread, Unit};
pub use not_sampled::{NotSampled, Unseen};
pub use own_cpu::{OwnCpu, Phase};
pub use pace::{RateSpan, SamplingRates};
pub use profile::{Charge, Profile};
pub use readable::shown as readable_names;
pub use routes::{NewRoute, RouteTable};
pub use shares::{Payer, Shares};
pub use shed::{Shed, ShedCounts};
pub use squares::{Squares, equal_squares, squared_metrics};
pub use text::sanitise;
pub use timeline::{TimeColumn, Timeline};
pub use update::{ChargeDelta, DefinitionCounts, NewContext, Update};
pub use update_merge::Updates;
