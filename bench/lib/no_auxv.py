#!/usr/bin/env python3
"""Runs a command to which the kernel does not tell the auxiliary vector by prctl(PR_GET_AUXV), but only by /proc/self/auxv. valgrind hides
the vDSO from its programs by that file; rustix asks prctl first (since Linux 6.4), and would call what is not there."""

import ctypes
import os
import struct
import sys

PRCTL = {"x86_64": 157, "aarch64": 167}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_GET_AUXV = 22, 38, 0x41555856
EINVAL = 22


def main():
    load, equal, give = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
    allow, refuse = 0x7FFF0000, 0x00050000 | EINVAL
    program = [(load, 0, 0, 0), (equal, 0, 3, PRCTL[os.uname().machine]), (load, 0, 0, 16), (equal, 0, 1, PR_GET_AUXV),
               (give, 0, 0, refuse), (give, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, 2, head, 0, 0):
        sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[1], sys.argv[1:])


main()
