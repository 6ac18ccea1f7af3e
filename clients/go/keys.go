package tidegate

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// hopsMax is how many hops of X-Forwarded-For are looked at, as in the server.
const hopsMax = 64

// MakeKey makes a key as the server's own doors do: MakeKey("api", "user", "ann") is
// "api user=ann". Behind the domain come names and values, in turns.
//
// Spaces, % and control characters are percent-encoded, so that no value can pretend to be
// another entry. It panics if a name has no value: all clients would share that key.
func MakeKey(domain string, entries ...string) string {
	if len(entries)%2 != 0 {
		panic(fmt.Sprintf("tidegate: MakeKey: %q has no value", entries[len(entries)-1]))
	}
	var out strings.Builder
	encode(&out, domain, false)
	for at, text := range entries {
		isName := at%2 == 0
		if isName {
			out.WriteByte(' ')
		} else {
			out.WriteByte('=')
		}
		encode(&out, text, isName)
	}
	return out.String()
}

func encode(out *strings.Builder, text string, isName bool) {
	for at := 0; at < len(text); at++ {
		c := text[at]
		if c <= ' ' || c == 0x7f || c == '%' || isName && c == '=' {
			fmt.Fprintf(out, "%%%02X", c)
		} else {
			out.WriteByte(c)
		}
	}
}

// ClientKey makes a key of the client's address: "<name> client=192.0.2.7".
//
// It is the address that the request came from. Only if a network of trustedProxies has that
// address is X-Forwarded-For trusted. It panics if one cannot be parsed as an address or as a
// network such as "10.0.0.0/8".
func ClientKey(name string, trustedProxies ...string) func(*http.Request) []string {
	return ClientNetworkKey(name, 128, trustedProxies...)
}

// ClientNetworkKey is ClientKey with one key for all IPv6 addresses that begin with the same bits:
// with 64 it is "<name> client=2001:db8:1:2::/64". A client usually has as many addresses. It
// panics unless there are 1 to 128 bits.
func ClientNetworkKey(
	name string, ipv6Bits int, trustedProxies ...string,
) func(*http.Request) []string {
	if ipv6Bits < 1 || ipv6Bits > 128 {
		panic(fmt.Sprintf("tidegate: %d is not the length of an IPv6 prefix", ipv6Bits))
	}
	var trusted []netip.Prefix
	for _, text := range trustedProxies {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			address, err := netip.ParseAddr(text)
			if err != nil {
				panic(fmt.Sprintf("tidegate: %q is not a network such as 10.0.0.0/8", text))
			}
			network = netip.PrefixFrom(address, address.BitLen())
		}
		if network != network.Masked() {
			panic(fmt.Sprintf("tidegate: %q has bits beyond its prefix: is it %q?", text,
				network.Masked()))
		}
		trusted = append(trusted, network)
	}
	return func(r *http.Request) []string {
		client, ok := clientAddress(r.RemoteAddr, r.Header.Values("X-Forwarded-For"), trusted)
		text := client.String()
		switch {
		case !ok:
			text = "-" // A Unix socket.
		case client.Is6() && ipv6Bits < 128:
			// The bits are at most those of the address.
			network, _ := client.Prefix(ipv6Bits)
			text = network.String()
		}
		return []string{MakeKey(name, "client", text)}
	}
}

// clientAddress is the peer's address, or the one that a trusted peer names. X-Forwarded-For is
// read from the right, because a client can write anything to the left of its own address.
func clientAddress(
	peer string, forwardedFor []string, trusted []netip.Prefix,
) (netip.Addr, bool) {
	client, ok := parseAddress(peer)
	if !ok {
		return client, false
	}
	hops := strings.Split(strings.Join(forwardedFor, ","), ",")
	for seen := 0; seen < hopsMax && seen < len(hops); seen++ {
		address, ok := parseAddress(strings.TrimSpace(hops[len(hops)-1-seen]))
		if !ok || !contains(trusted, client) {
			break
		}
		client = address
	}
	return client, true
}

func contains(networks []netip.Prefix, address netip.Addr) bool {
	for _, network := range networks {
		if network.Contains(address) {
			return true
		}
	}
	return false
}

func parseAddress(text string) (netip.Addr, bool) {
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	}
	address, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return address.Unmap().WithZone(""), err == nil
}
