"""A child of a remote tier that says what it was told to: bytes, results that shrink, nothing."""

import os
import socket
import sys


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    how = sys.argv[2]
    connection.recv(1 << 16, socket.MSG_PEEK if how == "deaf" else 0)
    if how == "deaf":
        return  # its end of the socket is reset, since what it was asked is unread
    if how == "garbage":
        connection.send(b"\xc1 no message")
    elif how == "letters":
        connection.send(b"\x93\x00\xa2\x93\xff\x03")  # a reason that is not UTF-8
    elif how == "unasked":
        connection.send(b"\x93\xcd\x03\xe7\xc0\x00")  # an answer to call 999
    elif how == "unsealed":
        result = os.memfd_create("result")
        os.write(result, b"bytes")
        socket.send_fds(connection, [b"\x93\x00\xc0\x00"], [result])
    elif how == "silent":
        connection.close()
    sys.stdin.read()
    while True:
        connection.recv(1 << 16)


if __name__ == "__main__":
    main()
