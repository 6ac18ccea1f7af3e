//! What manual pages say beside the help: the codes to exit with, the files, and examples.

/// A name and what it means.
type Entry = (&'static str, &'static str);
type Entries = &'static [Entry];

/// What one page says beside the help.
pub(super) struct Page {
    /// The words behind the program's name.
    pub(super) words: &'static str,
    pub(super) exits: Entries,
    pub(super) files: Entries,
    /// A command line and what it does.
    pub(super) examples: Entries,
}

/// Of the command behind these words.
pub(super) fn of(words: &str) -> Option<&'static Page> {
    PAGES.iter().find(|page| page.words == words)
}

const PRINTED: Entry = ("0", "Everything was printed.");
const USAGE: Entry = ("2", "The command line is wrong.");
const UNREACHABLE: Entry = ("1", "The server cannot be reached, or answered with an error.");
const TAKEN: Entry = ("0", "The use was taken.");
const NOT_TAKEN: Entry = ("3", "The use was not taken within --max-wait.");

const PRINTS: &[Entry] = &[PRINTED, USAGE];
const SERVES: &[Entry] = &[
    ("0", "A signal stopped the server."),
    ("1", "An address is unavailable, or the system refused a resource."),
    ("2", "The command line or the configuration is wrong; all mistakes are printed."),
];
const CHECKS: &[Entry] = &[
    ("0", "The configuration is valid."),
    ("2", "It is invalid or cannot be read; all mistakes are printed."),
];
const ASKS: &[Entry] =
    &[("0", "The use was allowed."), UNREACHABLE, USAGE, ("3", "The use was refused.")];
const WAITS: &[Entry] = &[TAKEN, UNREACHABLE, USAGE, NOT_TAKEN];
const RUNS: &[Entry] = &[
    ("The command's own", "The use was taken and the command ran."),
    ("126, 127", "The command could not be run, or was not found."),
    ("128 + N", "Signal N ended the command."),
    UNREACHABLE,
    USAGE,
    NOT_TAKEN,
];
const DONE: &[Entry] = &[("0", "The command succeeded."), UNREACHABLE, USAGE];
const READY: &[Entry] =
    &[("0", "The server is ready."), ("1", "It is not ready, or cannot be reached."), USAGE];
const REPLIED: &[Entry] = &[("0", "A reply came."), ("1", "No reply came in time."), USAGE];
const IMPORTED: &[Entry] = &[
    ("0", "Every limit has a native form."),
    ("1", "Some have none and became comments, or the folder is invalid."),
    USAGE,
];

const PACKAGED: Entry = (
    "/etc/tidegate/tidegate.toml",
    "The configuration of the packaged service, which names it with --config.",
);
const HERE: Entry =
    ("./tidegate.toml", "The configuration, if neither the command nor TIDEGATE_CONFIG names one.");
const CONFIGURATION: &[Entry] = &[PACKAGED, HERE];
const SERVED: &[Entry] = &[
    PACKAGED,
    HERE,
    ("/var/lib/tidegate", "The snapshots of the packaged service, and the folder it starts in."),
    ("/run/tidegate", "A folder for Unix sockets of the packaged service."),
];

const WHOLE: &[Entry] = &[
    ("0", "Success, or the use was allowed."),
    ("1", "The server cannot be reached, or an address is unavailable."),
    ("2", "The command line or the configuration is wrong."),
    ("3", "The use was refused."),
];

/// All pages. A test holds that every command has one.
pub(super) const PAGES: [Page; 21] = [
    Page {
        words: "",
        exits: WHOLE,
        files: SERVED,
        examples: &[
            ("tidegate serve", "Runs the server."),
            ("tidegate check 'login ip=192.0.2.7'", "Asks the server for a use of a key."),
        ],
    },
    Page {
        words: "serve",
        exits: SERVES,
        files: SERVED,
        examples: &[
            ("tidegate serve", "Runs ./tidegate.toml, or the built-in default."),
            ("tidegate serve --config /etc/tidegate/tidegate.toml", "Runs this file."),
        ],
    },
    Page {
        words: "jarl",
        exits: SERVES,
        files: &[],
        examples: &[(
            "tidegate jarl --service mail --requests 9 --period 60 --ip 127.0.0.1 --port 1234",
            "Tells callers of a mail service how long to wait: nine calls a minute.",
        )],
    },
    Page {
        words: "proxy",
        exits: SERVES,
        files: &[],
        examples: &[(
            "tidegate proxy --rpm 300 http://127.0.0.1:3000",
            "Forwards up to 300 requests a minute to each path of the upstream.",
        )],
    },
    Page {
        words: "check",
        exits: ASKS,
        files: &[],
        examples: &[
            ("tidegate check 'login ip=192.0.2.7'", "Takes one use of a key."),
            (
                "tidegate check 'api user=7' 'api global' --cost 5",
                "Takes five uses of each key, or nothing.",
            ),
            ("tidegate check --peek 'login ip=192.0.2.7'", "Shows the decision and takes nothing."),
        ],
    },
    Page {
        words: "wait",
        exits: WAITS,
        files: &[],
        examples: &[(
            "tidegate wait --max-wait 30s 'api user=7'",
            "Takes a use as soon as the limit allows it, within half a minute.",
        )],
    },
    Page {
        words: "exec",
        exits: RUNS,
        files: &[],
        examples: &[(
            "tidegate exec jobs -- tar -cf backup.tar documents",
            "Runs the command when the limit of `jobs` allows it; its end gives the use back.",
        )],
    },
    Page {
        words: "peek",
        exits: DONE,
        files: &[],
        examples: &[(
            "tidegate peek 'login ip=192.0.2.7'",
            "Shows the limits of a key and what is left of them.",
        )],
    },
    Page {
        words: "reset",
        exits: DONE,
        files: &[],
        examples: &[("tidegate reset 'login ip=192.0.2.7'", "Forgets what was counted for a key.")],
    },
    Page {
        words: "request",
        exits: REPLIED,
        files: &[],
        examples: &[(
            "tidegate request 'over_limit login ip=192.0.2.7'",
            "Asks the text door. The reply begins with `ok Y` if the key is over its limit.",
        )],
    },
    Page {
        words: "config",
        exits: CHECKS,
        files: CONFIGURATION,
        examples: &[(
            "tidegate config check /etc/tidegate/tidegate.toml",
            "Reports every mistake in the file.",
        )],
    },
    Page {
        words: "config check",
        exits: CHECKS,
        files: CONFIGURATION,
        examples: &[(
            "tidegate config check /etc/tidegate/tidegate.toml",
            "Reports every mistake in the file.",
        )],
    },
    Page {
        words: "config show",
        exits: CHECKS,
        files: CONFIGURATION,
        examples: &[(
            "tidegate config show tidegate.toml",
            "Prints the configuration with every default filled in.",
        )],
    },
    Page {
        words: "config example",
        exits: PRINTS,
        files: &[],
        examples: &[(
            "tidegate config example > tidegate.toml",
            "Starts a configuration that contains every setting.",
        )],
    },
    Page {
        words: "config schema",
        exits: PRINTS,
        files: &[],
        examples: &[(
            "tidegate config schema > tidegate.schema.json",
            "Writes a schema for an editor.",
        )],
    },
    Page {
        words: "config reference",
        exits: PRINTS,
        files: &[],
        examples: &[(
            "tidegate config reference > configuration.md",
            "Writes a page of every setting with its default and meaning.",
        )],
    },
    Page {
        words: "config import",
        exits: IMPORTED,
        files: &[],
        examples: &[(
            "tidegate config import ratelimit ratelimit/config > tidegate.toml",
            "Turns a folder of envoyproxy/ratelimit into rules.",
        )],
    },
    Page {
        words: "config import ratelimit",
        exits: IMPORTED,
        files: &[],
        examples: &[(
            "tidegate config import ratelimit ratelimit/config > tidegate.toml",
            "Turns a folder of envoyproxy/ratelimit into rules.",
        )],
    },
    Page {
        words: "healthcheck",
        exits: READY,
        files: &[],
        examples: &[
            ("tidegate healthcheck", "Asks the HTTP door at 127.0.0.1:8080."),
            ("tidegate healthcheck --server http://127.0.0.1:8090", "Asks administration."),
        ],
    },
    Page {
        words: "completions",
        exits: PRINTS,
        files: &[],
        examples: &[(
            "tidegate completions bash > tidegate.bash",
            "Writes completions; `source tidegate.bash` loads them.",
        )],
    },
    Page {
        words: "man",
        exits: PRINTS,
        files: &[],
        examples: &[
            ("tidegate man config check | man -l -", "Shows the page of one command."),
            ("tidegate man --folder man1", "Writes the pages of all commands."),
        ],
    },
];
