#!/usr/bin/env python3
"""A client of the ccsd daemon, written from daemon/docs/protocol.md alone.
ccsd_client.py SOCKET list | stream SESSION FILE | dump PID"""
import json, os, socket, struct, sys

OLDEST, NEWEST, CODEC = 1, 2, 3
MAX_PAYLOAD = 65536


class Refused(Exception):
    pass


class Client:
    def __init__(self, path, trusted=(0, os.geteuid())):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        server = struct.unpack("3i", self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if server not in trusted:
            raise Refused(f"user {server} serves {path}")
        self.id, self.version = 0, None
        self.send({"protocol": OLDEST, "newest": NEWEST, "codec": CODEC, "ccsd": "ccsd_client.py", "pid": os.getpid()})
        kind, hello = self.frame()
        if "refused" in hello:
            raise Refused(hello["refused"]["message"])
        if not OLDEST <= hello["protocol"] <= NEWEST:
            raise Refused(f"the daemon speaks version {hello['protocol']}")
        self.version, self.codec = hello["protocol"], hello.get("codec", 0)

    def send(self, message):
        payload = json.dumps(message).encode()
        assert len(payload) <= MAX_PAYLOAD
        self.socket.sendall(b"C" + struct.pack("<I", len(payload)) + payload)

    def bytes(self, count):
        found = bytearray()
        while len(found) < count:
            piece = self.socket.recv(count - len(found))
            if not piece:
                raise EOFError("the daemon went away")
            found += piece
        return bytes(found)

    def frame(self):
        """A message, or a piece of a profile."""
        kind, length = struct.unpack("<cI", self.bytes(5))
        assert kind in b"CS" and length <= MAX_PAYLOAD
        payload = self.bytes(length)
        return kind, json.loads(payload) if kind == b"C" else payload

    def ask(self, request):
        self.id += 1
        self.send(request if self.version == 1 else {"id": self.id, "request": request})

    def unpack(self, message):
        """Name and fields of a reply."""
        if self.version > 1:
            assert message["id"] == self.id, message
            message = message["reply"]
        name, fields = (message, {}) if isinstance(message, str) else next(iter(message.items()))
        if name == "refused":
            raise Refused(fields["message"])
        return name, fields

    def answers(self, request):
        """The fields of all replies to a request."""
        self.ask(request)
        more = True
        while more:
            kind, message = self.frame()
            assert kind == b"C"
            _, fields = self.unpack(message)
            more = fields.get("more", False)
            yield fields

    def list(self):
        return [session for fields in self.answers("list") for session in fields["sessions"]]

    def dump(self, pid):
        with open(f"/proc/{pid}/stat") as file:
            start = int(file.read().rpartition(")")[2].split()[19])
        return json.loads("".join(part["text"] for part in self.answers({"dump": {"pid": pid, "start": start}})))

    def stream(self, session, follow=True):
        """The profile of a session as a file, and why it has ended."""
        self.ask({"subscribe": {"session": session, "follow": follow}})
        profile = bytearray()
        while True:
            kind, payload = self.frame()
            if kind == b"S":
                profile += payload
                continue
            name, fields = self.unpack(payload)
            if name == "stream_end":
                return bytes(profile), fields["ended"]
            assert name == "stream", name
            profile.clear()


def main():
    path, command, *arguments = sys.argv[1:]
    client = Client(path)
    if command == "list":
        print(json.dumps(client.list()))
    elif command == "dump":
        print(json.dumps(client.dump(int(arguments[0]))))
    elif command == "stream":
        profile, ended = client.stream(int(arguments[0]))
        with open(arguments[1], "wb") as file:
            file.write(profile)
        print(json.dumps(ended))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main()
    except Refused as why:
        sys.exit(f"refused: {why}")
