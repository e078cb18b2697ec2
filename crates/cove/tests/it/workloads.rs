//! Real programs under the filter, as root and as an ordinary user: common work must succeed in a sandbox.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use cove_testkit::TestUser;
use cove_testkit::skip::skip;

use crate::cove;

/// Runs code that must succeed, print this, and write nothing to standard error.
fn check(test: &str, language: &str, code: &str, expected: &str) {
    for who in TestUser::all(test) {
        let out = cove().run(who, &["run", "--timeout", "100s", "-l", language, "-c", code]).expect_success();
        assert_eq!(out, expected, "{who:?}");
    }
}

#[test]
fn python_multiprocessing() {
    let code = "import multiprocessing as m\ndef f(x): return x * x\n\
                with m.get_context('fork').Pool(3) as p: print(sum(p.map(f, range(10))))\n\
                q = m.get_context('fork').Queue(); q.put(1); print(q.get())\n\
                from multiprocessing import shared_memory as s\n\
                b = s.SharedMemory(create=True, size=100); b.buf[0] = 7; print(b.buf[0]); b.close(); b.unlink()";
    check("python_multiprocessing", "python", code, "285\n1\n7\n");
}

#[test]
fn python_threads() {
    let code = "from concurrent.futures import ThreadPoolExecutor\nimport threading\n\
                with ThreadPoolExecutor(32) as p: print(sum(p.map(lambda x: x, range(1000))))\n\
                t = [threading.Thread(target=threading.Event().wait, args=(1,)) for _ in range(60)]\n\
                [x.start() for x in t]; print(threading.active_count() >= 60)";
    check("python_threads", "python", code, "499500\nTrue\n");
}

#[test]
fn python_sqlite() {
    let code = "import sqlite3\nd = sqlite3.connect('/workspace/d.db'); d.execute('pragma journal_mode=wal')\n\
                d.execute('create table t(x)'); d.executemany('insert into t values(?)', [(n,) for n in range(1000)])\n\
                d.commit(); print(d.execute('select sum(x) from t').fetchone()[0])";
    check("python_sqlite", "python", code, "499500\n");
}

#[test]
fn python_ssl() {
    let code = "import ssl, hashlib, secrets\nc = ssl.create_default_context()\n\
                print(c.verify_mode.name, len(hashlib.sha256(secrets.token_bytes(9)).digest()))";
    check("python_ssl", "python", code, "CERT_REQUIRED 32\n");
}

#[test]
fn python_asyncio() {
    let code = "import asyncio\n\
                async def echo(r, w): w.write(await r.readline()); await w.drain(); w.close()\n\
                s = await asyncio.start_server(echo, '127.0.0.1', 0)\n\
                async def ask(n):\n    r, w = await asyncio.open_connection(*s.sockets[0].getsockname())\n    \
                w.write(b'%d\\n' % n); line = await r.readline(); w.close(); return int(line)\n\
                print(sum(await asyncio.gather(*map(ask, range(50)))))\n\
                p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n\
                print((await p.communicate())[0])";
    check("python_asyncio", "python", code, "1225\nb'hi\\n'\n");
}

#[test]
fn python_subprocess() {
    let code = "import subprocess\n\
                print(subprocess.run('seq 5 | tac | head -2', shell=True, capture_output=True, text=True).stdout)\n\
                print(subprocess.run(['false']).returncode)";
    check("python_subprocess", "python", code, "5\n4\n\n1\n");
}

#[test]
fn node_workers() {
    let code = "const { Worker } = require('worker_threads');\n\
                const w = new Worker('require(\"worker_threads\").parentPort.postMessage(6 * 7)', { eval: true });\n\
                console.log(await new Promise((r) => w.on('message', r)))";
    check("node_workers", "node", code, "42\n");
}

#[test]
fn node_http_server_on_loopback() {
    let code = "const http = require('http');\n\
                const s = http.createServer((q, a) => a.end('got ' + q.url));\n\
                await new Promise((r) => s.listen(0, '127.0.0.1', r));\n\
                const a = await fetch(`http://127.0.0.1:${s.address().port}/x`);\n\
                console.log(await a.text()); s.close(); undefined";
    check("node_http_server_on_loopback", "node", code, "got /x\n");
}

#[test]
fn gcc() {
    let code = "printf '#include <stdio.h>\\n#include <pthread.h>\\nvoid *f(void *x) { return x; }\\n\
                int main(void) { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0); puts(\"built\"); }\\n' > a.c\n\
                gcc -O2 -pthread -o a a.c && ./a";
    check("gcc", "bash", code, "built\n");
}

#[test]
fn git() {
    let code = "git init -q r && cd r && git config user.email a@b && git config user.name n && echo x > f && git add f \
                && git commit -qm one && git clone -q . ../c && git -C ../c log --format=%s";
    check("git", "bash", code, "one\n");
}

/// It refuses to work if it cannot forbid core files, and locks its files.
#[test]
fn gpg() {
    let installed = std::process::Command::new("gpg").arg("--version").output().is_ok_and(|done| done.status.success());
    if !installed {
        return skip("gpg", "gpg is not installed");
    }
    let code = "export GNUPGHOME=/workspace/keys; mkdir -m 700 $GNUPGHOME; gpg --version | head -c 3; echo\n\
                secret() { gpg --batch --quiet --pinentry-mode loopback --passphrase example \"$@\"; }\n\
                echo text | secret --symmetric --output /workspace/sealed 2>&1\n\
                secret --decrypt /workspace/sealed 2>/dev/null; gpgconf --kill all";
    check("gpg", "bash", code, "gpg\ntext\n");
}

#[test]
fn tar_and_xz() {
    let code = "mkdir d; seq 1000 > d/f; ln -s f d/l; tar cJf d.tar.xz d && rm -r d && tar xf d.tar.xz && tail -1 d/l";
    check("tar_and_xz", "bash", code, "1000\n");
}

#[test]
fn perl() {
    let code = "perl -MIO::Socket::UNIX -e 'my $p = fork; if (!$p) { exit 3 } waitpid $p, 0; print $? >> 8, \"\\n\"'";
    check("perl", "bash", code, "3\n");
}

#[test]
fn numpy_and_pandas_in_a_virtual_environment() {
    let test = "numpy_and_pandas_in_a_virtual_environment";
    let Some(venv) = std::env::var_os("COVE_TEST_VENV").map(PathBuf::from) else {
        skip(test, "there is no such environment; run `cargo xtask test`, which makes one");
        return;
    };
    let python = venv.join("bin/python");
    let code = "import numpy as np, pandas as pd\nd = pd.DataFrame({'a': np.arange(1000)})\n\
                print(int(d.a.sum()), np.linalg.norm(np.eye(50)).round(3) > 7)";
    for who in TestUser::all(test) {
        let args = ["run", "--timeout", "100s", "--python", python.to_str().unwrap(), "-c", code];
        assert_eq!(cove().run(who, &args).expect_success(), "499500 True\n", "{who:?}");
    }
}

/// Programs that come across set-user-id bits go on without them; those that were asked for the bits say no.
#[test]
fn set_id_bits_fail_plainly() {
    let code = "cp /usr/bin/env a; chmod u+s a 2>/dev/null; echo chmod $?; install -m 2755 a b 2>/dev/null; echo install $?\n\
                mkdir c; chmod g+s c 2>/dev/null; echo folder $?; umask 022; chmod 1777 c; chmod 755 a; stat -c %a a c\n\
                python3 -c 'import io, tarfile as t; o = t.open(\"p.tar\", \"w\"); i = t.TarInfo(\"packed\"); \
                i.mode = 0o6755; o.addfile(i); o.close()'; tar xf p.tar && stat -c %a packed\n\
                git init -q plain && echo git; for f in /usr/bin/*; do if [ -u $f ] && [ -r $f ]; then \
                cp $f s || echo lost $f; cp -p $f t 2>/dev/null; cmp -s $f t || echo lost $f; find s t -perm /6000; fi; done";
    check("set_id_bits_fail_plainly", "bash", code, "chmod 1\ninstall 1\nfolder 1\n755\n1777\n755\ngit\n");
}

/// What code does to the files of a mount shows outside.
#[test]
fn mounted_files_get_no_set_id_bits_and_no_leases() {
    let code = "import fcntl, os\nopen('/data/program', 'w').close()\n\
                for act in (lambda: os.chmod('/data/program', 0o6755), lambda: os.fchmod(fd, 0o4755),\n            \
                lambda: os.close(os.open('/data/new', os.O_CREAT | os.O_WRONLY, 0o4755)),\n            \
                lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)):\n    \
                fd = os.open('/data/program', os.O_RDONLY)\n    \
                try: act(); print('allowed')\n    \
                except OSError as error: print(error.errno)\n    \
                os.close(fd)";
    for who in TestUser::all("mounted_files_get_no_set_id_bits_and_no_leases") {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let mount = format!("{}:/data:rw", folder.path().display());
        let out = cove().run(who, &["run", "--mount", &mount, "-c", code]).expect_success();
        assert_eq!(out, "1\n".repeat(4), "{who:?}");
        for entry in fs::read_dir(folder.path()).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o6000, 0, "{who:?}");
        }
        assert!(folder.path().join("program").exists(), "{who:?}");
    }
}
