//! The driver of the loop for Rust in docs/loops.md: DRIVER detached ELECTION CANDIDATE (see
//! ../../../README.md). loop.rs is the code as it is there.

include!("loop.rs");

use std::{cell::RefCell, env, io, process, sync::mpsc, thread};

struct Driver {
    election: String,
    candidate: String,
    commands: mpsc::Receiver<String>,
    asked: i64, // a time before the loop has looked whether it leads
    announced: i64,
    written: Option<(i64, String)>,
    turn: u64,
}

thread_local! {
    static DRIVER: RefCell<Option<Driver>> = RefCell::new(None);
}

/// CLOCK_MONOTONIC in nanoseconds
fn now() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn say(words: String) {
    println!("{words} {}", now());
}

fn driver<T>(f: impl FnOnce(&mut Driver) -> T) -> T {
    DRIVER.with(|driver| f(driver.borrow_mut().as_mut().unwrap()))
}

async fn first(client: &Client, sql: &str) -> Result<String, tokio_postgres::Error> {
    let rows = client.simple_query(sql).await?;
    Ok(rows.iter().find_map(|row| if let Row(row) = row { row.get(0) } else { None }).unwrap_or("").to_string())
}

async fn do_one_piece_of_work(client: &Client, term: i64) -> Result<(), tokio_postgres::Error> {
    let command = driver(|driver| {
        if driver.announced != term {
            say(format!("elected {term}"));
            driver.announced = term;
        }
        say(format!("working {term} {}", driver.asked));
        driver.commands.try_recv().unwrap_or_default()
    });
    let (command, ms) = command.split_once(' ').unwrap_or_default();
    let ms = ms.parse().unwrap_or(0);
    if command == "hang" {
        thread::sleep(Duration::from_millis(ms));
    }
    let last = Instant::now() + Duration::from_millis(ms);
    while command == "work" && Instant::now() < last {
        sleep(Duration::from_millis(20)).await; // until the loop ends it
        say(format!("working {term} {}", now()));
    }
    if let Some((term, xact)) = driver(|driver| driver.written.take()) {
        // the server's word that the last write was committed
        if first(client, &format!("SELECT pg_xact_status('{xact}')")).await? == "committed" {
            say(format!("wrote {term}"));
        }
    }
    sleep(Duration::from_millis(20)).await;
    let (turn, election, candidate) = driver(|driver| {
        driver.turn += 1;
        (driver.turn, quote(&driver.election), quote(&driver.candidate))
    });
    if turn % 5 == 0 {
        let sql = format!("SELECT pg_current_xact_id(), conformance.write({election}, {candidate}, {term})");
        let xact = first(client, &sql).await?;
        driver(|driver| driver.written = Some((term, xact)));
    }
    driver(|driver| driver.asked = now());
    Ok(())
}

/// PGHOST and PGPORT, lists both
fn config() -> Config {
    let of = |name| env::var(name).unwrap();
    format!("host={} port={} user={} password={} dbname={} target_session_attrs=read-write connect_timeout=2",
        of("PGHOST"), of("PGPORT"), of("PGUSER"), of("PGPASSWORD"), of("PGDATABASE")).parse().unwrap()
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (election, candidate) = (env::args().nth(2).unwrap(), env::args().nth(3).unwrap());
    let (sender, commands) = mpsc::channel();
    thread::spawn(move || io::stdin().lines().for_each(|line| drop(sender.send(line.unwrap_or_default()))));
    DRIVER.with(|driver| {
        *driver.borrow_mut() = Some(Driver {
            election: election.clone(), candidate: candidate.clone(), commands,
            asked: now(), announced: 0, written: None, turn: 0,
        })
    });
    let lease = Duration::from_secs_f64(env::var("LEASE").unwrap().parse().unwrap());
    say("ready".to_string());
    lead(&config(), &election, &candidate, lease).await.unwrap();
    say("closed".to_string());
    process::exit(0); // does not wait for the thread
}
