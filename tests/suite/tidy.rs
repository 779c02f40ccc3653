//! The form of the sources: who imports whom, sizes, headers, words, and flags and metrics that the
//! documents name. Behaviour is tested by behaviour, not here.

use std::fs;
use std::path::Path;

/// Lines a file may have before its tests.
const FILE_LINES: usize = 500;

/// Modules and what they may import, besides themselves and the first row.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("budget clock config disk metrics quiet shutdown", &[]),
    ("remoting", &[]),
    ("store", &[]),
    ("upstream", &["remoting"]),
    ("intercept", &["remoting", "store"]),
    ("namesrv", &["remoting", "upstream"]),
    ("dispatch", &["remoting", "store", "upstream"]),
    ("session", &["remoting", "store", "intercept", "namesrv", "upstream"]),
    ("admin", &["store", "dispatch"]),
    (
        "app",
        &["remoting", "store", "upstream", "intercept", "namesrv", "dispatch", "session", "admin"],
    ),
    ("cli", &["app"]),
];

/// Rank 0: small and shared. The others may import all of it, except where a rule says no.
const SHARED: &str = "budget clock config disk metrics quiet shutdown";

/// The wire has no clock: whoever decodes is told the time.
const EXCEPT: &[(&str, &str)] = &[("remoting", "clock")];

struct Source {
    /// Path below `src`, with slashes.
    name: String,
    text: String,
}

impl Source {
    /// Everything before the tests.
    fn code(&self) -> &str {
        let end = self.text.find("\n#[cfg(test)]").unwrap_or(self.text.len());
        &self.text[..end]
    }

    /// The code without comments and the documentation.
    fn statements(&self) -> impl Iterator<Item = &str> {
        self.code().lines().filter(|line| !line.trim_start().starts_with("//"))
    }

    /// First part of the path: the module.
    fn module(&self) -> &str {
        let first = self.name.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    fn is_test(&self) -> bool {
        self.name.ends_with("tests.rs") || self.name.contains("/tests/")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|err| panic!("{name}: {err}"))
}

/// All Rust files below a directory of the project.
fn sources(dir: &str) -> Vec<Source> {
    let top = root().join(dir);
    let mut found = Vec::new();
    let mut dirs = vec![top.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let name = path.strip_prefix(&top).unwrap().to_string_lossy().replace('\\', "/");
                let text = fs::read_to_string(&path).unwrap();
                found.push(Source { name, text });
            }
        }
    }
    found
}

/// Fails with all complaints at once.
fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// Names behind `crate::` in a line, those in braces too.
fn imports(line: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (at, prefix) in line.match_indices("crate::") {
        let rest = &line[at + prefix.len()..];
        let list =
            rest.strip_prefix('{').map_or(rest, |list| list.split('}').next().unwrap_or(list));
        let parts = if rest.starts_with('{') { list.split(',') } else { rest.split('\0') };
        for part in parts {
            let part = part.trim();
            let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            names.push(&part[..end.unwrap_or(part.len())]);
        }
    }
    names
}

#[test]
fn imports_point_down() {
    let mut complaints = Vec::new();
    for source in sources("src") {
        let module = source.module();
        if source.is_test() || module == "lib" || module == "main" {
            continue;
        }
        let row = MAY_IMPORT.iter().find(|(names, _)| names.split(' ').any(|n| n == module));
        let Some((names, below)) = row else {
            complaints.push(format!("{}: module without a rank", source.name));
            continue;
        };
        let shared = |name: &str| SHARED.split(' ').any(|n| n == name);
        for name in source.statements().flat_map(imports).filter(|name| !name.is_empty()) {
            let allowed = name == module
                || below.contains(&name)
                || (shared(name) && !EXCEPT.contains(&(module, name)));
            // Of the shared ones, only the clock is so basic that its neighbours may know it.
            let neighbour = *names == SHARED && name != module && name != "clock";
            if !allowed || neighbour {
                complaints.push(format!("{}: {module} may not import {name}", source.name));
            }
        }
        if module == "remoting" && source.code().contains("tokio::net") {
            complaints.push(format!("{}: the wire does no I/O", source.name));
        }
    }
    assert_none(&complaints);
}

#[test]
fn files_are_introduced_and_short() {
    let mut complaints = Vec::new();
    for dir in ["src", "tests"] {
        for source in sources(dir) {
            let name = &source.name;
            let unit_tests = dir == "src" && source.is_test();
            if !unit_tests && !source.text.starts_with("//! ") {
                complaints.push(format!("{dir}/{name}: the first line is no `//!`"));
            }
            let lines = source.code().lines().count();
            if dir == "src" && !source.is_test() && lines > FILE_LINES {
                complaints.push(format!("{dir}/{name}: {lines} lines, {FILE_LINES} at most"));
            }
        }
    }
    let tidy = read("tests/suite/tidy.rs").lines().count();
    assert!(tidy <= 300, "this file has {tidy} lines: it tests form and no more");
    assert_none(&complaints);
}

#[test]
fn every_file_is_a_module_of_its_parent() {
    let mut complaints = Vec::new();
    for source in sources("src") {
        let module = source.name.trim_end_matches(".rs").trim_end_matches("/mod");
        let (dir, module) = module.rsplit_once('/').unwrap_or(("", module));
        let parents = [format!("{dir}/mod.rs"), format!("{dir}.rs"), "lib.rs".to_owned()];
        let declared = parents.iter().any(|parent| {
            let text = fs::read_to_string(root().join("src").join(parent.trim_start_matches('/')));
            text.is_ok_and(|text| text.contains(&format!("mod {module};")))
        });
        if !declared && module != "lib" && module != "main" {
            complaints.push(format!("{}: no parent declares it", source.name));
        }
    }
    assert_none(&complaints);
}

#[test]
fn nothing_is_left_to_do() {
    let left = "dbg|!(, to|do!(, unimpl|emented!(, (to be |written)".replace('|', "");
    let mut complaints = Vec::new();
    for source in sources("src").iter().chain(&sources("tests")) {
        for word in left.split(", ") {
            if source.text.contains(word) {
                complaints.push(format!("{}: {word}", source.name));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn texts_stand_on_their_own() {
    // Words of how the work was done, which mean nothing to whoever reads the result. Each with a bar
    // in it, so that this file does not contain them.
    let words = " as dis|cussed, as req|uested, this ses|sion, no longer nee|ded,cla|ude,chat|gpt,\
                 fix|me,/wo|rk/,/ro|ot/, see iss|ue,issu|es/";
    let words = words.replace('|', "");
    let mut texts: Vec<_> = sources("src")
        .into_iter()
        .chain(sources("tests"))
        .map(|source| (source.name, source.text))
        .collect();
    for name in ["README.md", "CHANGELOG.md", "docs/HACKING.md", "docs/OPERATING.md"] {
        texts.push((name.to_owned(), read(name)));
    }
    let mut complaints = Vec::new();
    for (name, text) in &texts {
        let lower = text.to_lowercase();
        for word in words.split(',').filter(|word| lower.contains(word)) {
            complaints.push(format!("{name}: {word:?}"));
        }
        let ticket = text.lines().find(|line| {
            line.match_indices(" #")
                .any(|(at, mark)| line[at + mark.len()..].starts_with(|c: char| c.is_ascii_digit()))
        });
        complaints.extend(ticket.map(|line| format!("{name}: a ticket number: {line}")));
    }
    assert_none(&complaints);
}

#[test]
fn the_documents_name_every_flag_and_every_metric() {
    let (readme, operating) = (read("README.md"), read("docs/OPERATING.md"));
    let cli = read("src/cli.rs");
    let flags: Vec<_> = cli
        .lines()
        .filter_map(|line| line.trim().strip_prefix("env = \"ROCKETMQ_TIMER_PROXY_"))
        .filter_map(|rest| rest.split('"').next())
        .map(|variable| format!("`--{}", variable.to_lowercase().replace('_', "-")))
        .collect();
    assert!(flags.len() >= 14, "{flags:?}");
    let metrics = read("src/metrics.rs");
    // A field of the handles is named like its family.
    let kinds = ["Counter,", "Gauge,", "ByWhy,", "Histogram,"];
    let families: Vec<_> = metrics
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": "))
        .filter(|(_, kind)| kinds.contains(kind))
        .map(|(name, _)| name)
        .collect();
    assert!(families.len() >= 20, "{families:?}");
    let unnamed = flags
        .iter()
        .filter(|flag| !readme.contains(flag.as_str()))
        .map(|flag| format!("README.md does not name {flag}`"));
    let unknown = families
        .iter()
        .filter(|family| !operating.contains(&format!("`{family}`")))
        .map(|family| format!("docs/OPERATING.md does not name `{family}`"));
    assert_none(&unnamed.chain(unknown).collect::<Vec<_>>());
}
