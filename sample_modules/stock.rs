// Rust: a stock of goods from lines of stdin. Holds: B-trees of strings on the heap, iterators and closures, trait objects,
// a half-read stdin, half-written reports. Arguments: a folder for the reports. Lines are "in|out, item, number, price";
// what is wrong with a line is said on stderr. Checks that the reports' totals are those counted on the way.
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};

#[derive(Debug)]
enum Problem {
    Fields(usize),
    Number(String),
    Direction(String),
    Short { item: String, missing: u64 },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Problem::Fields(count) => write!(f, "{} fields instead of 4", count),
            Problem::Number(text) => write!(f, "{:?} is no number", text),
            Problem::Direction(text) => write!(f, "{:?} is neither in nor out", text),
            Problem::Short { item, missing } => write!(f, "{} of {} are missing", missing, item),
        }
    }
}

#[derive(Default, Clone)]
struct Item {
    count: u64,
    moves: u32,
    value: f64,
}

type Stock = BTreeMap<String, Item>;

fn number<T: std::str::FromStr>(text: &str) -> Result<T, Problem> {
    text.parse().map_err(|_| Problem::Number(text.to_string()))
}

fn apply(stock: &mut Stock, line: &str) -> Result<f64, Problem> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() != 4 {
        return Err(Problem::Fields(fields.len()));
    }
    let (count, price): (u64, f64) = (number(fields[2])?, number(fields[3])?);
    let item = stock.entry(fields[1].to_lowercase()).or_default();
    let signed = match fields[0] {
        "in" => {
            item.count += count;
            count as f64 * price
        }
        "out" => {
            item.count = item.count.checked_sub(count).ok_or_else(|| Problem::Short {
                item: fields[1].to_string(),
                missing: count - item.count,
            })?;
            -(count as f64) * price
        }
        other => return Err(Problem::Direction(other.to_string())),
    };
    item.moves += 1;
    item.value += signed;
    Ok(signed)
}

trait Report {
    fn name(&self) -> &str;
    fn write(&self, stock: &Stock, out: &mut dyn Write) -> io::Result<f64>;
}

struct Alphabetical;
struct Dearest {
    most: usize,
}

impl Report for Alphabetical {
    fn name(&self) -> &str {
        "items.txt"
    }
    fn write(&self, stock: &Stock, out: &mut dyn Write) -> io::Result<f64> {
        stock.iter().try_fold(0.0, |sum, (name, item)| {
            writeln!(out, "{:<8}{:>6} {:>10.2} ({})", name, item.count, item.value, item.moves)?;
            Ok(sum + item.value)
        })
    }
}

impl Report for Dearest {
    fn name(&self) -> &str {
        "dearest.txt"
    }
    fn write(&self, stock: &Stock, out: &mut dyn Write) -> io::Result<f64> {
        let mut all: Vec<_> = stock.iter().collect();
        all.sort_by(|a, b| b.1.value.partial_cmp(&a.1.value).unwrap().then_with(|| a.0.cmp(b.0)));
        for (place, (name, item)) in all.iter().take(self.most).enumerate() {
            writeln!(out, "{}. {} {:.2}", place + 1, name, item.value)?;
        }
        Ok(stock.values().map(|item| item.value).sum())
    }
}

fn main() -> io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let (mut stock, mut total, mut good) = (Stock::new(), 0.0, 0);
    let mut problems: Vec<(usize, Problem)> = Vec::new();
    for (number, line) in io::stdin().lock().lines().enumerate() {
        match apply(&mut stock, &line?) {
            Ok(value) => {
                total += value;
                good += 1;
            }
            Err(problem) => problems.push((number + 1, problem)),
        }
    }
    let reports: Vec<Box<dyn Report>> = vec![Box::new(Alphabetical), Box::new(Dearest { most: 3 })];
    for report in &reports {
        let mut out = BufWriter::new(File::create(format!("{}/{}", folder, report.name()))?);
        let told = report.write(&stock, &mut out)?;
        assert!((told - total).abs() < 1e-6 * (1.0 + total.abs()), "{} instead of {}", told, total);
        out.flush()?;
    }
    println!("{} lines, {} wrong, {} items worth {:.2}", good, problems.len(), stock.len(), total);
    for (line, problem) in problems.iter().take(4) {
        eprintln!("line {}: {}", line, problem);
    }
    Ok(())
}
