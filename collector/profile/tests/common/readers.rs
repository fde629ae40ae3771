//! Readers of what is exported: each knows the format, and nothing of how ccsd writes it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test binary uses a part of this")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use ccsd_profile::Profile;
use ccsd_profile::export::{Export, Format};
use ccsd_profile::view::Selection;
use prost::Message;
use serde_json::Value;

pub type Weights = BTreeMap<String, (u64, u64)>;
pub type Edges = BTreeSet<(String, String)>;

/// What stands between two functions of which the one may not have called the other. It is no function.
pub const GAP: &str = "[...]";

/// What was charged to a stack, as far as a format says it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub tid: Option<u64>,
    pub frames: Vec<String>,
    pub line: Option<u64>,
    pub samples: Option<u64>,
    /// One for each metric in formats that have all metrics, else one.
    pub weights: Vec<u64>,
}

pub const OF_STACKS: [Format; 7] =
    [Format::Folded, Format::Speedscope, Format::Firefox, Format::Json, Format::Html, Format::Pprof, Format::Svg];

pub fn export(profile: &Profile, selection: &Selection, format: Format) -> Vec<u8> {
    let mut out = Vec::new();
    Export::new(profile, selection).write(format, &mut out).unwrap();
    out
}

pub fn text(profile: &Profile, selection: &Selection, format: Format) -> String {
    String::from_utf8(export(profile, selection, format)).unwrap()
}

pub fn stacks(format: Format, bytes: &[u8]) -> Vec<Row> {
    let text = || std::str::from_utf8(bytes).unwrap();
    let json = || serde_json::from_slice::<Value>(bytes).unwrap();
    match format {
        Format::Folded => folded(text()),
        Format::Speedscope => speedscope(&json()),
        Format::Firefox => firefox(&json()),
        Format::Json => self::json(&json()),
        Format::Html => html(&page(text())),
        Format::Pprof => pprof(&read_pprof(bytes)),
        Format::Svg => svg(text()),
        _ => unreachable!("{} lists no stacks", format.name()),
    }
}

/// The calls in frames, root first: none over a gap.
pub fn calls<'a>(frames: impl IntoIterator<Item = &'a str>, edges: &mut Edges) {
    let frames: Vec<&str> = frames.into_iter().collect();
    for pair in frames.windows(2).filter(|pair| !pair.contains(&GAP)) {
        edges.insert((pair[0].to_owned(), pair[1].to_owned()));
    }
}

pub fn edges(rows: &[Row]) -> Edges {
    let mut edges = Edges::new();
    rows.iter().for_each(|row| calls(row.frames.iter().map(String::as_str), &mut edges));
    edges
}

/// What a reader that counts a function once for each stack makes of stacks.
pub fn weights(rows: &[Row], metric: usize) -> Weights {
    let mut weights = Weights::new();
    for row in rows {
        // A stack of one frame that begins with `#` is a remark.
        if row.frames[0].starts_with('#') {
            assert_eq!((row.frames.len(), row.weights[metric]), (1, 0), "{row:?}");
            continue;
        }
        weights.entry(row.frames.last().unwrap().clone()).or_default().0 += row.weights[metric];
        for name in row.frames.iter().filter(|name| *name != GAP).collect::<BTreeSet<_>>() {
            weights.entry(name.clone()).or_default().1 += row.weights[metric];
        }
    }
    weights
}

fn at(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn folded(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let (stack, weight) = line.rsplit_once(' ').unwrap();
        let frames = stack.split(';').map(str::to_owned).collect();
        Row { frames, weights: vec![weight.parse().unwrap()], ..Row::default() }
    };
    text.lines().map(row).collect()
}

fn speedscope(file: &Value) -> Vec<Row> {
    let mut rows = Vec::new();
    for profile in list(&file["profiles"]) {
        assert_eq!(profile["type"], "sampled");
        let thread = profile["name"].as_str().unwrap().rsplit_once(", thread ").unwrap().1;
        let tid = thread.split('(').nth(1).unwrap().split(')').next().unwrap().parse().unwrap();
        let (samples, weights) = (list(&profile["samples"]), list(&profile["weights"]));
        assert_eq!(samples.len(), weights.len());
        let first = rows.len();
        for (sample, weight) in samples.iter().zip(weights) {
            let frame = |it: &Value| file["shared"]["frames"][at(it)]["name"].as_str().unwrap().to_owned();
            let frames = list(sample).iter().map(frame).collect();
            let weights = vec![weight.as_u64().unwrap()];
            rows.push(Row { tid: Some(tid), frames, weights, ..Row::default() });
        }
        let sum = rows[first..].iter().map(|row| row.weights[0]).sum::<u64>();
        assert_eq!((&profile["startValue"], &profile["endValue"]), (&0.into(), &sum.into()));
    }
    rows
}

/// A stack is a row that names its caller's.
fn firefox(document: &Value) -> Vec<Row> {
    let shared = &document["shared"];
    let cell = |table: &str, column: &str, row: usize| &shared[table][column][row];
    let mut rows = Vec::new();
    for thread in list(&document["threads"]) {
        let samples = &thread["samples"];
        let scale = if samples["weightType"] == "tracing-ms" { 1e6 } else { 1.0 };
        let tid = thread["tid"].as_str().map_or_else(|| thread["tid"].as_u64(), |it| it.parse().ok());
        for sample in 0..at(&samples["length"]) {
            let mut row = at(&samples["stack"][sample]);
            let frame = at(cell("stackTable", "frame", row));
            let line = cell("frameTable", "line", frame).as_u64();
            let mut frames = Vec::new();
            loop {
                let function = at(cell("frameTable", "func", at(cell("stackTable", "frame", row))));
                let name = at(cell("funcTable", "name", function));
                frames.push(shared["stringArray"][name].as_str().unwrap().to_owned());
                match at(cell("stackTable", "prefixOffset", row)) {
                    0 => break,
                    offset => row -= offset,
                }
            }
            frames.reverse();
            let weight = (samples["weight"][sample].as_f64().unwrap() * scale).round() as u64;
            rows.push(Row { tid, frames, line, samples: None, weights: vec![weight] });
        }
    }
    rows
}

fn json(document: &Value) -> Vec<Row> {
    let row = |stack: &Value| {
        let function = |it: &Value| document["functions"][at(it)]["name"].as_str().unwrap().to_owned();
        Row {
            tid: document["threads"][at(&stack["thread"])]["tid"].as_u64(),
            frames: list(&stack["functions"]).iter().map(function).collect(),
            line: stack["line"][1].as_u64(),
            samples: stack["samples"].as_u64(),
            weights: list(&stack["weights"]).iter().map(|it| it.as_u64().unwrap()).collect(),
        }
    };
    list(&document["stacks"]).iter().map(row).collect()
}

pub fn page(html: &str) -> Value {
    let data = html.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(data).unwrap()
}

/// Numbers as the page has them: base64 (RFC 4648, section 4) of LEB128.
fn unpack(packed: &Value) -> Vec<u64> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for digit in packed.as_str().unwrap().bytes().filter(|digit| *digit != b'=') {
        let sextet = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            digit => unreachable!("{digit} is no digit of base64"),
        };
        (bits, count) = (bits << 6 | u32::from(sextet), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    let (mut numbers, mut number, mut shift) = (Vec::new(), 0, 0);
    for byte in bytes {
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            numbers.push(number);
            (number, shift) = (0, 0);
        }
    }
    numbers
}

fn unpack_ascending(packed: &Value) -> Vec<u64> {
    let mut sum = 0;
    let sums = unpack(packed).into_iter().map(|number| {
        sum += number;
        sum
    });
    sums.collect()
}

/// The weight of each cell of a page, by the number of its stack.
pub fn cells(data: &Value) -> Vec<(usize, u64)> {
    let (cells, layer) = (&data["cells"], &data["cells"]["layers"][0]);
    let unit = layer["unit"].as_u64().unwrap();
    let parts = (list(&cells["threads"]).len().max(1) * list(&cells["starts"]).len().max(1)) as u64;
    let nodes = unpack_ascending(&cells["steps"]).into_iter().map(|step| (step / parts) as usize);
    nodes.zip(unpack(&layer["weights"]).into_iter().map(|weight| weight * unit)).collect()
}

/// A tree, every node after its parent.
fn html(data: &Value) -> Vec<Row> {
    let gaps: BTreeSet<usize> = unpack_ascending(&data["gaps"]).into_iter().map(|node| node as usize).collect();
    let mut path: Vec<Vec<String>> = Vec::new();
    let mut rows: Vec<Row> = Vec::new();
    for (node, (depth, entry)) in unpack(&data["depths"]).into_iter().zip(unpack(&data["entries"])).enumerate() {
        path.truncate(depth as usize);
        assert_eq!(path.len(), depth as usize, "node {node} has no caller");
        let mut frames = path.last().cloned().unwrap_or_default();
        frames.extend(gaps.contains(&node).then(|| GAP.to_owned()));
        frames.push(data["functions"][entry as usize >> 1][0].as_str().unwrap().to_owned());
        path.push(frames.clone());
        rows.push(Row { frames, weights: vec![0], ..Row::default() });
    }
    for (node, weight) in cells(data) {
        rows[node].weights[0] += weight;
    }
    rows.retain(|row| row.weights[0] > 0);
    rows
}

/// A flame graph: every box hangs on the one whose width it shares.
fn svg(text: &str) -> Vec<Row> {
    let mut boxes: Vec<(u64, u64, f64, String)> = Vec::new();
    for part in text.split("<title>").skip(1) {
        let (title, rest) = part.split_once("</title>").unwrap();
        let title = title.rsplit_once(" (").unwrap().0;
        let attribute = |name: &str| rest.split_once(&format!(" {name}=\"")).unwrap().1.split_once('"').unwrap().0;
        let number = |name: &str| attribute(name).parse::<u64>().unwrap();
        boxes.push((number("fg:x"), number("fg:w"), attribute("y").parse().unwrap(), title.to_owned()));
    }
    // From the top row down, which is that of `all`.
    boxes.sort_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0)));
    let mut rows: Vec<(Vec<usize>, u64)> = Vec::new();
    for (place, (from, width, y, _)) in boxes.iter().enumerate() {
        let above = boxes[..place].iter().rposition(|it| it.2 < *y && it.0 <= *from && from + width <= it.0 + it.1);
        let mut path = above.map(|it| rows[it].0.clone()).unwrap_or_default();
        path.push(place);
        if let Some(above) = above {
            rows[above].1 -= width;
        }
        rows.push((path, *width));
    }
    let frames = |path: &[usize]| path.iter().skip(1).map(|&it| boxes[it].3.clone()).collect::<Vec<_>>();
    let rows = rows.into_iter().filter(|(_, own)| *own > 0);
    rows.map(|(path, own)| Row { frames: frames(&path), weights: vec![own], ..Row::default() }).collect()
}

#[derive(Debug, Default, PartialEq)]
pub struct Callgrind {
    /// Own cost, and own cost with that of the calls.
    pub weights: Weights,
    /// Cost and count of the calls, by caller and callee.
    pub calls: BTreeMap<(String, String), (u64, u64)>,
    /// Own cost by function and line.
    pub lines: BTreeMap<(String, u64), u64>,
    pub total: u64,
}

pub fn callgrind(text: &str) -> Callgrind {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut found = Callgrind::default();
    let (mut function, mut callee, mut call) = (String::new(), String::new(), None);
    let mut in_body = false;
    for line in text.lines() {
        if let Some(total) = line.strip_prefix("summary: ") {
            (found.total, in_body) = (total.parse().unwrap(), true);
        } else if let Some((key, value)) = line.split_once('=').filter(|_| in_body && !line.starts_with('#')) {
            if matches!(key, "fn" | "cfn") {
                let (number, name) = value.split_once(' ').unwrap_or((value, ""));
                let name = names.entry(number.to_owned()).or_insert_with(|| name.to_owned()).clone();
                if key == "fn" { function = name } else { callee = name }
            } else if key == "calls" {
                call = Some(value.split(' ').next().unwrap().parse::<u64>().unwrap());
            }
        } else if in_body && line.starts_with(|c: char| c.is_ascii_digit()) {
            let (number, cost) = line.split_once(' ').unwrap();
            let cost: u64 = cost.parse().unwrap();
            let weight = found.weights.entry(function.clone()).or_default();
            weight.1 += cost;
            if let Some(count) = call.take() {
                let sum = found.calls.entry((function.clone(), callee.clone())).or_default();
                (sum.0, sum.1) = (sum.0 + cost, sum.1 + count);
            } else {
                weight.0 += cost;
                *found.lines.entry((function.clone(), number.parse().unwrap())).or_default() += cost;
            }
        }
    }
    found
}

#[derive(Debug, Default, PartialEq)]
pub struct Dot {
    pub weights: Weights,
    pub other: u64,
    /// Percentages at each arc between drawn functions (one, or caller's and callee's), and whether it is marked as
    /// approximate.
    pub arcs: BTreeMap<(String, String), (Vec<String>, bool)>,
}

pub fn dot(text: &str) -> Dot {
    let mut found = Dot::default();
    let mut names = BTreeMap::new();
    let attribute = |line: &str, name: &str| {
        let rest = line.split_once(&format!("{name}=\"")).unwrap().1;
        rest.split_once('"').unwrap().0.to_owned()
    };
    for line in text.lines().filter_map(|line| line.strip_prefix('\t')) {
        if line.contains(" -> ") || !line.contains("tooltip=") {
            continue;
        }
        let tooltip = attribute(line, "tooltip");
        let numbers: Vec<u64> = tooltip.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
        if let [own, inherited] = numbers[..] {
            let name = attribute(line, "label").split("\\n").next().unwrap().to_owned();
            names.insert(line.split(' ').next().unwrap(), name.clone());
            found.weights.insert(name, (own, inherited));
        } else {
            found.other += numbers[0];
        }
    }
    for line in text.lines().filter_map(|line| line.strip_prefix('\t')) {
        let Some((from, rest)) = line.split_once(" -> ") else { continue };
        if let (Some(from), Some(to)) = (names.get(from), names.get(rest.split(' ').next().unwrap())) {
            let label = attribute(line, "label");
            let percents =
                label.trim_start_matches('~').split("\\n").map(|it| it.split('%').next().unwrap().to_owned());
            found.arcs.insert((from.clone(), to.clone()), (percents.collect(), label.starts_with('~')));
        }
    }
    found
}

/// gprof's text: self weight by its first table; self and children, and the callees, by its second. In units of its text.
#[derive(Debug, Default, PartialEq)]
pub struct Gprof {
    pub own: BTreeMap<String, String>,
    pub both: BTreeMap<String, (String, String)>,
    /// Self, children and samples of the calls, by caller and callee, as the entry of the caller lists them.
    pub callees: BTreeMap<(String, String), (String, String, u64)>,
    pub callers: BTreeMap<(String, String), (String, String, u64)>,
}

pub fn gprof(text: &str) -> Gprof {
    let mut found = Gprof::default();
    let (flat, graph) = text.split_once("Call graph").unwrap();
    for line in flat.lines().skip_while(|line| !line.starts_with(" time ")).skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, _, own, name] = words[..] {
            found.own.insert(name.to_owned(), own.to_owned());
        }
    }
    let entries = graph.split("Index by function name").next().unwrap();
    let entries = entries.split_once("called     name\n").unwrap().1;
    for entry in entries.split("-----------------------------------------------\n") {
        // ` <cycle 1>` stands behind the name.
        let name = |words: &[&str]| words[0].to_owned();
        let (mut before, mut function) = (Vec::new(), None);
        for line in entry.lines().filter(|line| line.contains('[')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if line.contains("as a whole") {
                break;
            } else if line.starts_with('[') {
                let this = name(&words[5..]);
                found.both.insert(this.clone(), (words[2].to_owned(), words[3].to_owned()));
                function = Some(this);
                continue;
            }
            let Some((samples, _)) = words[2].split_once('/') else { continue };
            let arc = (words[0].to_owned(), words[1].to_owned(), samples.parse::<u64>().unwrap());
            match &function {
                None => before.push((name(&words[3..]), arc)),
                Some(function) => drop(found.callees.insert((function.clone(), name(&words[3..])), arc)),
            }
        }
        for (caller, arc) in before {
            found.callers.insert((caller, function.clone().unwrap()), arc);
        }
    }
    found
}

/// Self and inherited weight, and samples of both, of functions whose names need no quotes.
pub fn csv(text: &str) -> BTreeMap<String, [u64; 4]> {
    let mut rows = text.strip_suffix("\r\n").unwrap().split("\r\n").map(|line| line.split(',').collect::<Vec<_>>());
    let columns = rows.next().unwrap();
    assert_eq!((columns.len(), &columns[..2]), (6, &["function", "image"][..]));
    let mut found = BTreeMap::new();
    for row in rows {
        let numbers: [u64; 4] = std::array::from_fn(|at| row[2 + at].parse().unwrap());
        assert_eq!(row.len(), 6, "{row:?}");
        if row[0].starts_with('#') {
            assert_eq!(numbers, [0; 4], "{row:?}");
        } else {
            found.insert(row[0].to_owned(), numbers);
        }
    }
    found
}

#[derive(Message)]
pub struct Pprof {
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<PprofValueType>,
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<PprofSample>,
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<PprofLocation>,
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<PprofFunction>,
    #[prost(string, repeated, tag = "6")]
    pub strings: Vec<String>,
    #[prost(int64, tag = "12")]
    pub period: i64,
}

#[derive(Message)]
pub struct PprofValueType {
    #[prost(int64, tag = "1")]
    pub kind: i64,
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

#[derive(Message)]
pub struct PprofSample {
    #[prost(uint64, repeated, tag = "1")]
    pub location: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<PprofLabel>,
}

#[derive(Message)]
pub struct PprofLabel {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(int64, tag = "2")]
    pub text: i64,
    #[prost(int64, tag = "3")]
    pub number: i64,
}

#[derive(Message)]
pub struct PprofLocation {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<PprofLine>,
}

#[derive(Message)]
pub struct PprofLine {
    #[prost(uint64, tag = "1")]
    pub function: u64,
    #[prost(int64, tag = "2")]
    pub line: i64,
}

#[derive(Message)]
pub struct PprofFunction {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(int64, tag = "2")]
    pub name: i64,
    #[prost(int64, tag = "4")]
    pub file: i64,
}

pub fn read_pprof(bytes: &[u8]) -> Pprof {
    let mut message = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut message).unwrap();
    Pprof::decode(message.as_slice()).unwrap()
}

fn pprof(message: &Pprof) -> Vec<Row> {
    let string = |at: i64| message.strings[usize::try_from(at).unwrap()].as_str();
    let functions: BTreeMap<u64, &str> = message.function.iter().map(|it| (it.id, string(it.name))).collect();
    let locations: BTreeMap<u64, &PprofLine> = message.location.iter().map(|it| (it.id, &it.line[0])).collect();
    let row = |sample: &PprofSample| {
        let values: Vec<u64> = sample.value.iter().map(|&it| u64::try_from(it).unwrap()).collect();
        assert_eq!(values.len(), message.sample_type.len());
        let number = |key: &str| sample.label.iter().find(|it| string(it.key) == key).map(|it| it.number as u64);
        let frame = |id: &u64| functions[&locations[id].function].to_owned();
        Row {
            tid: number("tid"),
            frames: sample.location.iter().rev().map(frame).collect(),
            line: Some(locations[&sample.location[0]].line as u64).filter(|line| *line > 0),
            samples: Some(values[0]),
            weights: values[1..].to_vec(),
        }
    };
    message.sample.iter().map(row).collect()
}
