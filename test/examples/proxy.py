"""A proxy in front of a server that counts the statements of its clients.

When the n-th statement, over all connections, has been executed, it does not
pass on the answer but calls what it was told to call: to kill the client, or to
cut the connection. So the client dies after each of its statements in turn, and
never knows whether that one was done.

It can also hold a statement on its way to the server.
"""

import os
import socket
import struct
import threading


class Proxy:
    def __init__(self, listen_dir, server_dir, port=5432):
        self.server = f"{server_dir}/.s.PGSQL.{port}"
        self.lock = threading.Lock()
        self.arm(0, None)
        self.hold = None                # statements with these bytes are held
        self.held = threading.Event()
        self.go_on = threading.Event()
        self.listener = socket.socket(socket.AF_UNIX)
        os.makedirs(listen_dir, exist_ok=True)
        self.listener.bind(f"{listen_dir}/.s.PGSQL.5432")
        self.listener.listen(16)
        threading.Thread(target=self.accept, daemon=True).start()

    def arm(self, number, action, text=b""):
        """Calls action() once, after statement `number` of those with this text counted from now; 0: never."""
        with self.lock:
            self.seen, self.number, self.action, self.text = 0, number, action, text
            self.fired = threading.Event()

    def disarm(self):
        """Nothing is called from now on. Returns whether it was."""
        with self.lock:
            fired = self.fired.is_set()
            self.seen, self.number, self.fired = 0, 0, threading.Event()
        return fired

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.connection, args=(client,), daemon=True).start()

    def connection(self, client):
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self.server)
        except OSError:
            client.close()
            return
        asked = []                      # whom to tell that the next answer came, which is not passed on
        threading.Thread(target=self.answers, args=(client, server, asked), daemon=True).start()
        try:
            self.requests(client, server, asked)
        except OSError:
            pass
        finally:
            self.close(client, server)

    def requests(self, client, server, asked):
        startup = read(client, 4)
        server.sendall(startup + read(client, struct.unpack("!I", startup)[0] - 4))
        statement = b""
        while True:
            head = read(client, 5)
            body = read(client, struct.unpack("!I", head[1:])[0] - 4)
            if self.hold is not None and self.hold in body:
                self.held.set()
                self.go_on.wait()
            statement += body
            # Q is a statement; so is what ends with S, in the extended protocol
            if head[:1] in b"QS":
                with self.lock:
                    self.seen += self.text in statement
                    if self.seen == self.number and self.text in statement:
                        asked.append(self.fired)
                statement = b""
            server.sendall(head + body)

    def answers(self, client, server, asked):
        held = b""
        try:
            while True:
                head = read(server, 5)
                held += head + read(server, struct.unpack("!I", head[1:])[0] - 4)
                if asked:
                    if head[:1] != b"Z":
                        continue
                    if self.fire(asked.pop()):
                        break
                client.sendall(held)
                held = b""
        except OSError:
            pass
        finally:
            self.close(client, server)

    def fire(self, fired):
        """Unless it was armed anew, or disarmed, since the statement was sent."""
        with self.lock:
            if fired is not self.fired:
                return False
            self.action()
            fired.set()
        return True

    @staticmethod
    def close(*sockets):
        for one in sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()


def read(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise OSError("closed")
        data += part
    return data
