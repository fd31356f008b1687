"""Programs that try to get out, to earn what they have not, or to take the machine with them. Data only.

An attack prints ESCAPED where it worked; its problem expects exactly that, so a pass is an escape. They are
started by a judge whose isolation self-test has passed, and by nothing else: never run one by hand.
"""

import random
import textwrap

PRELUDE = """
import ctypes, os, signal, socket, sys, threading, time
def escaped(): os.write(1, b"ESCAPED\\n")
def syscall(*args): return ctypes.CDLL(None, use_errno=True).syscall(*args)
"""

# name -> body. It may use PRELUDE, calls escaped() if it worked, and is formatted with the places it goes for.
OUT = {
    "read the repository": "open({repo!r}).read()\nescaped()",
    "read a secret file": "if open({secret!r}).read(): escaped()",
    "list the temporary folder": "if os.listdir('/tmp'): escaped()",
    "read shadow": "open('/etc/shadow').read()\nescaped()",
    "read the users": "open('/etc/passwd').read()\nescaped()",
    "list the home folder": "if set(os.listdir({home!r})) - {{'.pyenv'}}: escaped()",
    "write into usr": "open('/usr/judge-was-here', 'w').write('x')\nescaped()",
    "write into the root folder": "open('/judge-was-here', 'w').write('x')\nescaped()",
    "change the interpreter": "open(sys.executable, 'r+b').write(b'x')\nescaped()",
    "change the standard library": "open(os.__file__, 'a').write('x')\nescaped()",
    "write into dev": "open('/dev/judge-was-here', 'w').write('x')\nescaped()",
    "signal the host": "os.kill({pid}, 15)\nescaped()",
    "signal everybody and init": "for p in (1, -1):\n    try: os.kill(p, signal.SIGSTOP); os.kill(p, 9)\n"
                                 "    except OSError: pass",
    "see processes of the host": "if len([p for p in os.listdir('/proc') if p.isdigit()]) > 5: escaped()",
    "connect to a listener": "s = socket.socket(); s.settimeout(.3); s.connect(('127.0.0.1', {port}))\nescaped()",
    "send a datagram": "s = socket.socket(type=2); s.sendto(b'x', ('192.0.2.1', 9))\nescaped()",
    "talk to the hypervisor": "socket.socket(40, 1)\nescaped()",
    "open a packet socket": "socket.socket(17, 3)\nescaped()",
    "open a netlink socket": "socket.socket(16, 3)\nescaped()",
    "open a raw socket": "socket.socket(2, 3, 1)\nescaped()",
    "reach an abstract socket": "s = socket.socket(1); s.connect(chr(0) + {abstract!r})\nescaped()",
    "mount over tmp": "if ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0: escaped()",
    "unmount": "if ctypes.CDLL(None).umount2(b'/usr', 2) == 0: escaped()",
    "new user namespace": "if ctypes.CDLL(None).unshare(0x10000000) == 0: escaped()",
    "new mount namespace": "if ctypes.CDLL(None).unshare(0x20000) == 0: escaped()",
    "clone a user namespace": "if syscall({clone}, 0x10000000 | 17, 0, 0, 0, 0) == 0: escaped(); os._exit(0)",
    "clone3": "if syscall(435, ctypes.create_string_buffer(88), 88) >= 0: escaped()",
    "become root": "os.setuid(0)\nescaped()",
    "become another user": "os.setuid(65534 if os.getuid() != 65534 else 1)\nescaped()",
    "change root": "os.chroot('/tmp')\nescaped()",
    "make a device": "os.mknod('/tmp/sda', 0o60666, os.makedev(8, 0))\nescaped()",
    "trace the parent": "if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0: escaped()",
    "read the memory of init": "open('/proc/1/mem', 'rb').read(1)\nescaped()",
    "look through init's root": "os.listdir('/proc/1/root/etc')\nescaped()",
    "look through init's working folder": "if os.path.exists('/proc/1/cwd' + {repo!r}): escaped()",
    "write a kernel setting": "open('/proc/sys/kernel/hostname', 'w').write('x')\nescaped()",
    "press system request": "open('/proc/sysrq-trigger', 'w').write('h')\nescaped()",
    "use a keyring": "if syscall({add_key}, b'user', b'k', b'v', 1, -4) >= 0: escaped()",
    "memory that no limit counts": "os.memfd_create('x')\nescaped()",
    "shared memory": "if syscall({shmget}, 0, 1 << 20, 0o1600) >= 0: escaped()",
    "io_uring": "if syscall(425, 4, ctypes.create_string_buffer(120)) >= 0: escaped()",
    "bpf": "if syscall({bpf}, 0, ctypes.create_string_buffer(64), 64) >= 0: escaped()",
    "raise its own limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nescaped()",
    "raise its own priority": "os.nice(-5)\nescaped()",
    "read the environment": "if {variable!r} in os.environ or {variable!r} in open('/proc/1/environ').read(): escaped()",
    "inherited files": "if [f for f in os.listdir('/proc/self/fd') if int(f) > 3]: escaped()",
    "a setuid program": "import subprocess\nif subprocess.run(['/usr/bin/su', '-c', 'id'], capture_output=True, "
                        "stdin=-3).returncode == 0: escaped()",
    "more than its tmp": "with open('/tmp/a', 'wb') as f:\n    for _ in range(80): f.write(bytes(1 << 20))\nescaped()",
    "more than its tmp, in pieces": "for i in range(80):\n    with open(f'/tmp/{{i}}', 'wb') as f: "
                                    "f.write(bytes(1 << 20))\nescaped()",
    "sixty processes": "for _ in range(60):\n    if os.fork() == 0: time.sleep(30); os._exit(0)\nescaped()",
    "sixty threads": "for _ in range(60): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()\nescaped()",
}

# name -> (body, right verdicts): programs that would take the machine with them.
TAKE = {
    "memory": ("x = bytearray(1500 << 20)", {"memory"}),
    "memory, piece by piece": ("x = []\nwhile True: x.append(bytes(1 << 20))", {"memory", "crash"}),
    "memory of many": ("for _ in range(12):\n    if os.fork() == 0: x = b'x' * (100 << 20); time.sleep(30)\n"
                       "time.sleep(30)", {"memory"}),
    "an endless loop": ("while True: pass", {"timeout"}),
    "an endless loop in many": ("for _ in range(3): os.fork()\nwhile True: pass", {"timeout"}),
    "sleep": ("time.sleep(999)", {"timeout"}),
    "fork bomb": ("while True:\n    try: os.fork()\n    except OSError: pass", {"timeout", "memory"}),
    "thread bomb": ("while True:\n    try: threading.Thread(target=time.sleep, args=(99,)).start()\n"
                    "    except RuntimeError: pass", {"timeout", "memory"}),
    "output without end": ("while True: os.write(1, b'x' * 65536)", {"fail"}),
    "errors without end": ("while True: os.write(2, b'x' * 65536)", {"timeout"}),
    "ignores signals": ("for s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, "
                        "ValueError): pass\nwhile True: pass", {"timeout"}),
    "an orphan that goes on": ("if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True: pass\n"
                               "    os._exit(0)\ntime.sleep(.1)\nos._exit(0)", {"fail"}),
    "keeps its output open": ("if os.fork() == 0: time.sleep(99)\nos._exit(0)", {"fail"}),
    "very deep recursion": ("sys.setrecursionlimit(10**9)\ndef f(): return f() + 1\nf()", {"crash", "memory", "timeout"}),
    "a huge integer": ("print(9 ** 9 ** 9)", {"timeout", "memory"}),
    "a catastrophic pattern": ("import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')", {"timeout"}),
    "files without number": ("i = 0\nwhile True:\n    open(f'/tmp/{i}', 'w').close(); i += 1",
                             {"timeout", "crash", "memory"}),
    "stops itself": ("os.kill(os.getpid(), signal.SIGSTOP)", {"timeout"}),
}

_WRITE = "import os\nfor fd in range(3, 64):\n    try: os.write(fd, {})\n    except OSError: pass\n"
_LATER = "import os\ndef f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, {})\n        except OSError: pass\n"

# name -> (form, source): programs that want the reward. They are asked for f(7), or for the number on line 7; the
# right answer is a number that they cannot compute.
CHEAT = {
    "leaves early": ("check", "import os\ndef f(x): os._exit(0)"),
    "leaves at import": ("check", "import sys\nsys.exit(0)"),
    "raises SystemExit": ("check", "def f(x): raise SystemExit(0)"),
    "equals everything": ("check", "class E(int):\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n"
                                   "def f(x): return E(3)"),
    "equals everything by patching": ("check", "import builtins\nclass E:\n    def __eq__(s, o): return True\n"
                                               "builtins.int = builtins.str = E\ndef f(x): return E()"),
    "patches the tests": ("check", "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'check' in o:\n"
                                   "        o['check'] = lambda c: None\ndef f(x): return 0"),
    "reads the tests in memory": ("check", "import gc, re\ndef f(x):\n    for o in gc.get_objects():\n        m = re.search("
                                           "r'== (\\d{9,})', repr(o)[:100000])\n        if m: return int(m[1])"),
    "looks up its callers": ("check", "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n        for v in "
                                      "[*frame.f_locals.values(), *frame.f_globals.values()]:\n            if "
                                      "isinstance(v, int) and v > 10**8: return v\n        frame = frame.f_back"),
    "says passed": ("check", _WRITE.format("b'{\"loaded\": true}\\n{\"passed\": true}\\n'") + "def f(x): return 0"),
    "says passed when asked": ("check", _LATER.format("b'{\"passed\": true}\\n'") + "    return 0"),
    "answers before it is asked": ("check", _WRITE.format("b'{\"value\": true}\\n' * 99") + "def f(x): return True"),
    "raises what ends a test": ("check", "def f(x): raise AssertionError"),
    "returns not a number": ("check", "def f(x): return float('nan')"),
    "a value that breaks the reader": ("check", "def f(x):\n    v = []\n    for _ in range(900): v = [v]\n    return v"),
    "sends garbage": ("check", _LATER.format("b'[' * 60000 + b'\\n'") + "    return 0"),
    "closes everything": ("check", "import os\ndef f(x): os.closerange(0, 256)"),
    "writes the result itself": ("call", _WRITE.format("b'{\"passed\": true, \"value\": true}\\n'") + "os._exit(0)"),
    "two results": ("call", _WRITE.format("b'{\"value\": 1}\\n{\"value\": 2}\\n'") + "def f(x): return 3"),
    "replaces the encoder": ("call", "import sys\nframe = sys._getframe()\nwhile frame:\n    frame.f_globals['dump'] = "
                                     "lambda v: 'true'\n    frame = frame.f_back\ndef f(x): return 1"),
    "a list that lies": ("call", "class L(list):\n    def __eq__(s, o): return True\ndef f(x): return L()"),
    "a pickle": ("call", "class P:\n    def __reduce__(s): return (print, ('ESCAPED',))\ndef f(x): return P()"),
    "a huge value": ("call", "def f(x): return 'x' * (64 << 20)"),
    "a value of deep lists": ("call", _LATER.format("b'{\"value\": ' + b'[' * 30000 + b']' * 30000 + b'}\\n'")
                              + "    os._exit(0)"),
    "an integer of too many digits": ("call", _LATER.format("b'{\"value\": ' + b'9' * 60000 + b'}\\n'") + "    os._exit(0)"),
    "reads its job": ("call", "import re\ndef f(x):\n    m = re.search(r'(\\d{9,})', open('/proc/self/cmdline').read())\n"
                              "    return int(m[1]) if m else 0"),
    "searches its memory": ("call", "import gc, re\ndef f(x):\n    for o in gc.get_objects():\n        m = re.search("
                                    "r'(\\d{9,})', repr(o)[:100000])\n        if m: return int(m[1])"),
    "repeats its input": ("stdin", "import sys\nprint(sys.stdin.read())"),
    "prints everything": ("stdin", "print(*range(100000))"),
    "leaves with 0 and nothing": ("stdin", "import os\nos._exit(0)"),
}

_WRAPPERS = {
    "plain": "{body}",
    "in a function": "def main():\n{indented}\nmain()",
    "in a thread": "def main():\n{indented}\nt = threading.Thread(target=main)\nt.start()\nt.join()",
    "at exit": "import atexit\ndef main():\n{indented}\natexit.register(main)",
    "in a finaliser": "class C:\n    def __del__(self):\n{indented2}\nc = C()\ndel c",
    "in a child": "pid = os.fork()\nif pid == 0:\n{indented}\n    os._exit(0)\nos.waitpid(pid, 0)",
    "in a new session": "pid = os.fork()\nif pid == 0:\n    os.setsid()\n{indented}\n    os._exit(0)\nos.waitpid(pid, 0)",
    "in another Python": "import subprocess\nsubprocess.run([sys.executable, '-S', '-c', {whole!r}])",
    "compiled from text": "exec(compile({body!r}, 'x', 'exec'))",
    "in a signal handler": "def main(*_):\n{indented}\nsignal.signal(signal.SIGUSR1, main)\nos.kill(os.getpid(), "
                           "signal.SIGUSR1)\ntime.sleep(.01)",
    "after an error": "try:\n    1 / 0\nexcept ZeroDivisionError:\n{indented}",
}


def attack(body: str, facts: dict, wrapper: str = "plain") -> str:
    """Source of an attack of OUT. facts: the places that it goes for."""
    body = body.format(**facts)
    return PRELUDE + _WRAPPERS[wrapper].format(
        body=body, whole=PRELUDE + body, indented=textwrap.indent(body, "    "), indented2=textwrap.indent(body, " " * 8))


def variants(count: int, facts: dict, seed: int = 0) -> list[tuple[str, str]]:
    """(name, source) of attacks in other clothes, the plain ones left out."""
    every = [(f"{name}, {how}", attack(body, facts, how)) for name, body in OUT.items()
             for how in _WRAPPERS if how != "plain"]
    return random.Random(seed).sample(every, count)
