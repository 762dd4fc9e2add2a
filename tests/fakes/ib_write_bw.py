"""A fake of perftest's ib_write_bw: its options, TCP handshake, output and exit codes.

The server opens the device, accepts one connection and ends after it; the client ends with code 1 and "Couldn't connect
to HOST:PORT" where no server listens (perftest_communication.c, ethernet_client_connect). FAKE_RATES is JSON: Gb/s by
device and port; "hang" never answers, other text is an error of the server and the client.
"""

import argparse
import json
import os
import socket
import sys
import time

LINE = "-" * 87
BANNER = f"""{LINE}
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : {{device}}
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 PCIe relax order: ON
 ibv_wr* API     : ON
 TX depth        : 128
 CQ Moderation   : 1
 Mtu             : 4096[B]
 Link type       : IB
 Max inline data : 0[B]
 rdma_cm QPs\t : OFF
 Data ex. method : Ethernet
{LINE}
 local address: LID 0x0c QPN 0x0094 PSN 0x4d2cb8 RKey 0x1fff00 VAddr 0x007f26a2c8b000
 remote address: LID 0x0c QPN 0x0095 PSN 0xabcdef RKey 0x1fff01 VAddr 0x007f820b24f000
{LINE}
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"""


def main():
    parser = argparse.ArgumentParser()
    for name, kind in (("-d", str), ("-i", int), ("-p", int), ("-s", int), ("-n", int)):
        parser.add_argument(name, type=kind, required=True)
    parser.add_argument("-F", action="store_true", required=True)
    parser.add_argument("--report_gbits", action="store_true", required=True)
    parser.add_argument("server", nargs="?")
    asked = parser.parse_args()
    rate = json.loads(os.environ["FAKE_RATES"]).get(
        f"{asked.d}:{asked.i}", " Unable to find the Infiniband/RoCE device"
    )
    options = f"{asked.d} {asked.i} {asked.s} {asked.n}"
    if rate == "hang":
        time.sleep(60)
    if isinstance(rate, str):
        sys.exit(rate)
    if asked.server is None:
        time.sleep(0.2)  # it opens the device first
        with socket.create_server(("", asked.p)) as listening:
            print(f"\n{'*' * 36}\n* Waiting for client to connect... *\n{'*' * 36}")
            peer, _ = listening.accept()
        with peer:
            same = peer.recv(200).decode() == options
            peer.sendall(b"ok" if same else b"no")
        print(BANNER.format(device=asked.d))
        sys.exit(0 if same else 1)
    try:
        with socket.create_connection((asked.server, asked.p), timeout=5) as peer:
            peer.sendall(options.encode())
            if peer.recv(2) != b"ok":
                sys.exit(" Failed to exchange data between server and clients")
    except ConnectionRefusedError:
        print(f"Couldn't connect to {asked.server}:{asked.p}", file=sys.stderr)
        sys.exit(" Unable to open file descriptor for socket connection")
    print(BANNER.format(device=asked.d))
    print(f" {asked.s:<7}    {asked.n:<10}       {1.01 * rate:<7.2f}            {rate:<7.2f}\t\t     0.046492")
    print(LINE)


main()
