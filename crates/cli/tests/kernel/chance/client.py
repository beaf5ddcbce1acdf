# A client of all volumes of a server, for the scripts of tests by chance.
import hashlib
import random

# What can be asked for is done, what fails is said: a snapshot's store may be full.
def volumes(uri):
    h, names = nbd.NBD(), []
    h.set_opt_mode(True)
    h.connect_uri(uri)
    h.opt_list(lambda name, _: names.append(name) or 0)
    h.opt_abort()
    return sorted(name for name in names if not name.startswith('disk/'))

def connect_to(name):
    return connect(uri.replace(':///?', f':///{name}?'))

# Up to so many writes, discards and zeroes.
def scatter(h, rng, most):
    size = h.get_size()
    for _ in range(0 if h.is_read_only() else rng.randrange(most)):
        at = rng.randrange(size // 512) * 512
        length = min(size - at, rng.choice([512, 4096, 65536, 300 << 10]))
        what = rng.choice(['write', 'write', 'write', 'fua', 'discard', 'zero', 'hole'])
        try:
            if what == 'discard':
                h.trim(length, at)
            elif what == 'zero' or what == 'hole':
                h.zero(length, at, nbd.CMD_FLAG_NO_HOLE if what == 'zero' else 0)
            else:
                h.pwrite(rng.randbytes(length), at, nbd.CMD_FLAG_FUA if what == 'fua' else 0)
        except nbd.Error as error:
            print('failed:', what, at, length, error)

def flush(h):
    try:
        h.flush()
    except nbd.Error as error:
        print('failed: flush', error)

# `sum VOLUME BYTES SHA-256`, without a hash where it cannot be read.
def tell(name, h):
    size, found = h.get_size(), hashlib.sha256()
    try:
        for at in range(0, size, 4 << 20):
            found.update(h.pread(min(4 << 20, size - at), at))
        print('sum', name, size, found.hexdigest())
    except nbd.Error as error:
        print('failed:', name, error)
        print('sum', name, size)

# Copies a volume to a file: `unreadable SECTOR SECTORS` of what cannot be read, where there are zeros in the file.
def copy(name, path):
    h, smaller = connect_to(name), {1 << 20: 64 << 10, 64 << 10: 4096, 4096: None}
    with open(path, 'wb') as file:
        file.truncate(h.get_size())
        def part(start, end, most):
            for at in range(start, end, most):
                length = min(most, end - at)
                try:
                    file.seek(at)
                    file.write(h.pread(length, at))
                except nbd.Error as error:
                    assert error.errnum == errno.EIO, error
                    if smaller[most]:
                        part(at, at + length, smaller[most])
                    else:
                        print('unreadable', at // 512, length // 512)
        part(0, h.get_size(), 1 << 20)
    print('copied')
