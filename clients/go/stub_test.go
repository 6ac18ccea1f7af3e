package tidegate

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen before it gives up. Never a measure.
const patience = 30 * time.Second

// gone is the URL of a server that is not there: nothing listens on this port, which is for root
// alone.
const gone = "http://127.0.0.1:2"

// stub answers each request with these bytes, and closes the connection. "" never answers.
func stub(t *testing.T, answer string) string {
	t.Helper()
	url, _ := stubOf(t, answer)
	return url
}

// stubOf is a stub with several answers, the last of which it gives again and again, and says on a
// channel that a request has come.
func stubOf(t *testing.T, answers ...string) (string, <-chan struct{}) {
	t.Helper()
	asked := make(chan struct{}, 64)
	next := make(chan string, len(answers))
	for _, answer := range answers {
		next <- answer
	}
	last := answers[len(answers)-1]
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		close(done)
		listener.Close()
	})
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				request, err := http.ReadRequest(bufio.NewReader(connection))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, request.Body)
				answer := last
				select {
				case answer = <-next:
				default:
				}
				select {
				case asked <- struct{}{}:
				default:
				}
				if answer == "" {
					<-done
				}
				_, _ = io.WriteString(connection, answer)
			}()
		}
	}()
	return "http://" + listener.Addr().String(), asked
}

// said are the bytes of an answer.
func said(body, status, headers string) string {
	length := len(body)
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s", status, length, headers, body)
}

var allowed = said(`{"allowed":true,"delay_ms":0,"refused_by":null,"limits":[]}`, "200 OK", "")

// held is the answer to a hold, which ends its connection.
var held = said(
	`{"allowed":true,"delay_ms":0,"refused_by":null,"limits":[],"use":"7"}`, "200 OK",
	"Connection: close\r\n",
)

// goneBack is the answer to a release.
var goneBack = said("", "204 No Content", "")

// useless are answers that decide nothing.
var useless = []string{
	said(`{"status":503,"reason":"draining"}`, "503 Service Unavailable", ""),
	said("", "500 Internal Server Error", ""),
	said("<html>", "429 Too Many Requests", ""),
	said("<html>", "403 Forbidden", ""),
	said("", "404 Not Found", ""),
	said(`{"status":"Failure","reason":"NotFound","code":404}`, "404 Not Found", ""),
	said(`{"status":404,"detail":"nothing here"}`, "404 Not Found", ""),
	said("{}", "200 OK", ""),
	said("[]", "200 OK", ""),
	said(strings.Repeat(" ", 2<<20), "200 OK", ""),
	said("", "302 Found", "Location: "+gone+"\r\n"),
}

// broken are answers that are no HTTP, or break off.
var broken = []string{
	"\x00\x01\x02\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", "\r\n",
}

// untilWaiting asks again and again until so many requests wait at the real server's HTTP door.
func untilWaiting(t *testing.T, count int) {
	t.Helper()
	line := fmt.Sprintf("tidegate_waiting{door=\"http\"} %d\n", count)
	for deadline := time.Now().Add(patience); ; {
		response, err := http.Get(os.Getenv("TIDEGATE_SERVER") + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(page), line) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there were never %d who wait", count)
		}
	}
}

func made(t *testing.T, config Config) *Client {
	t.Helper()
	client, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func patient(t *testing.T) *Client {
	t.Helper()
	return made(t, Config{Timeout: patience})
}
