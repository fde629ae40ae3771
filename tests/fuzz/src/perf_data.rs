//! Files of `perf record`, and what it writes to a pipe.

use std::io::{Seek, Write};

use ccsd_collector::import::{RecordingSource, perf_data};

/// Imports them both ways.
pub fn run(data: &[u8]) {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(data).and_then(|()| file.rewind()).expect("it can be written");
    // Beyond what the file says it is there is nothing to be checked: what contradicts itself is counted.
    let _ = perf_data(RecordingSource::File(file), None, &mut |_, _| {});
    let _ = perf_data(RecordingSource::Pipe(&mut &data[..]), None, &mut |_, _| {});
}
