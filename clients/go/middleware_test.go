package tidegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// app serves whoever the client lets through, by the name in X-User.
func app(
	t *testing.T, config Config, key func(*http.Request) []string,
) func(user string) *http.Response {
	t.Helper()
	if config.Timeout == 0 {
		config.Timeout = patience
	}
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "served")
	})
	server := httptest.NewServer(made(t, config).Middleware(next, key))
	t.Cleanup(server.Close)
	return func(user string) *http.Response {
		t.Helper()
		request, err := http.NewRequest(http.MethodGet, server.URL+"/a", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-User", user)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		return response
	}
}

func byUser(t *testing.T) func(*http.Request) []string {
	return func(r *http.Request) []string {
		user := r.Header.Get("X-User")
		if user == "operator" {
			return nil
		}
		return []string{"login " + t.Name() + " " + user}
	}
}

func status(t *testing.T, response *http.Response, expected int) {
	t.Helper()
	if response.StatusCode != expected {
		t.Fatal(response.Status)
	}
}

func TestTheFourthVisitIsRefused(t *testing.T) {
	visit := app(t, Config{}, byUser(t))
	for number := 1; number <= 3; number++ {
		status(t, visit("ann"), 200)
	}
	refused := visit("ann")
	status(t, refused, 429)
	if refused.Header.Get("Content-Type") != "application/problem+json" ||
		refused.Header.Get("Retry-After") == "" {
		t.Fatal(refused.Header)
	}
	var told struct {
		Status     int
		Reason     string
		Refused_By string
	}
	if err := json.NewDecoder(refused.Body).Decode(&told); err != nil {
		t.Fatal(err)
	}
	if told.Status != 429 || told.Reason != "over_limit" || told.Refused_By != "logins" {
		t.Fatalf("%+v", told)
	}
	status(t, visit("ben"), 200)
	for number := 1; number <= 5; number++ {
		status(t, visit("operator"), 200)
	}
}

func TestWhatTheServerSaysOfItsLimitsIsHandedOn(t *testing.T) {
	says := "RateLimit-Policy: \"a\";q=5;w=60\r\nRateLimit: \"a\";r=4;t=30\r\n"
	for line, allowed := range map[string]bool{"200 OK": true, "429 Too Many Requests": false} {
		body := fmt.Sprintf(`{"allowed":%t,"delay_ms":1,"refused_by":null,"limits":[]}`, allowed)
		visit := app(t, Config{Server: stub(t, said(body, line, says))}, byUser(t))
		header := visit("ann").Header
		if header.Get("RateLimit-Policy") != `"a";q=5;w=60` ||
			header.Get("RateLimit") != `"a";r=4;t=30` {
			t.Fatal(header)
		}
	}
}

func TestAKeyThatCannotBeSentIsNoWayAroundTheLimit(t *testing.T) {
	visit := app(t, Config{}, byUser(t))
	status(t, visit(strings.Repeat("x", 1024)), 400)
	status(t, visit("\xff"), 400)
}

func TestWithoutAServerRequestsPassOrAreToldToComeBack(t *testing.T) {
	wrong := func(*http.Request) []string { return []string{"jobs cannot end"} }
	for onError, expected := range map[OnError]int{Allow: 200, Deny: 503} {
		visit := app(t, Config{Server: gone, OnError: onError}, byUser(t))
		for number := 1; number <= 4; number++ {
			status(t, visit("ann"), expected)
		}
		// What the server calls wrong is decided in the same way.
		status(t, app(t, Config{OnError: onError}, wrong)("ann"), expected)
	}
}

func TestARequestWhoseContextIsOverIsToldToComeBack(t *testing.T) {
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") })
	limited := made(t, Config{Server: stub(t, ""), Timeout: patience}).Middleware(next, byUser(t))
	late, stop := context.WithTimeout(background, 0)
	defer stop()
	answered := httptest.NewRecorder()
	limited.ServeHTTP(answered, httptest.NewRequest("GET", "/a", nil).WithContext(late))
	if answered.Code != 503 || answered.Header().Get("Retry-After") != "1" {
		t.Fatal(answered)
	}
}

func TestAnswersThatFailNowAndThenDoNotFillTheLog(t *testing.T) {
	var told bytes.Buffer
	log.SetOutput(&told)
	defer log.SetOutput(io.Discard)
	second := 0
	w := watch{now: func() time.Time { return time.Unix(int64(second), 0) }}
	note := func(err error, lines int) {
		t.Helper()
		if w.note(Result{Err: err, Allowed: lines < 3}); strings.Count(told.String(), "\n") != lines {
			t.Fatalf("at %d s, in place of %d lines:\n%s", second, lines, told.String())
		}
	}
	late := errors.New("late")
	for ; second < 100; second++ {
		if second%9 == 0 {
			note(late, 1)
		} else {
			note(nil, 1)
		}
	}
	// The last failure was at 99 s.
	for _, at := range [][2]int{{108, 1}, {109, 2}, {110, 2}, {200, 2}} {
		second = at[0]
		note(nil, at[1])
	}
	note(late, 3)
	for _, done := range []string{"allowed", "refused"} {
		if !strings.Contains(told.String(), "requests are "+done+" without Tidegate: late") {
			t.Error(told.String())
		}
	}
}

func TestMiddlewareDoesNotWait(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("MaxWait is refused")
		}
	}()
	made(t, Config{}).Middleware(http.DefaultServeMux, byUser(t), MaxWait(time.Second))
}

func TestValuesDoNotRunIntoOneAnother(t *testing.T) {
	check := func(key, expected string) {
		t.Helper()
		if key != expected {
			t.Error(key)
		}
	}
	check(MakeKey("api", "user", "ann", "n", "1"), "api user=ann n=1")
	check(MakeKey("a b", "x=y", "1=2 3%\n\x7fé"), "a%20b x%3Dy=1=2%203%25%0A%7Fé")
}

func TestTheClientIsTheLastHopThatIsNotTrusted(t *testing.T) {
	key := ClientKey("api", "192.0.2.0/24", "10.0.0.0/8", "::1")
	for _, c := range [][3]string{
		{"203.0.113.1:9", "1.1.1.1", "203.0.113.1"},
		{"192.0.2.1:9", "", "192.0.2.1"},
		{"192.0.2.1:9", "6.6.6.6, 1.1.1.1", "1.1.1.1"},
		{"192.0.2.1:9", "6.6.6.6, 1.1.1.1, 10.1.1.1", "1.1.1.1"},
		{"192.0.2.1:9", "10.2.2.2, 10.1.1.1", "10.2.2.2"},
		{"192.0.2.1:9", "6.6.6.6, nonsense", "192.0.2.1"},
		{"192.0.2.1:9", "1.1.1.1:99", "1.1.1.1"},
		{"192.0.2.1:9", "[2001:db8::1]:99", "2001:db8::1"},
		{"[::ffff:192.0.2.1]:9", "2001:DB8:0::1", "2001:db8::1"},
		{"[::1]:9", "1.1.1.1", "1.1.1.1"},
		{"[fe80::1%eth0]:9", "", "fe80::1"},
		{"", "1.1.1.1", "-"},
	} {
		request := &http.Request{RemoteAddr: c[0], Header: http.Header{"X-Forwarded-For": {c[1]}}}
		if found := key(request)[0]; found != "api client="+c[2] {
			t.Errorf("%v: %s", c, found)
		}
	}
}

func TestANetworkThatIsNoneIsTold(t *testing.T) {
	for _, wrong := range []string{
		"nonsense", "10.0.0.0/", "10.0.0.0/33", "10.0.0.5/8", "2001:db8::1/32", "", "/8",
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error(wrong)
				}
			}()
			ClientKey("api", wrong)
		}()
	}
}

func TestTheAddressesOfAnIPv6NetworkMayShareACount(t *testing.T) {
	for _, c := range []struct {
		bits           int
		peer, expected string
	}{
		{64, "[2001:db8:1:2:3:4:5:6]:9", "2001:db8:1:2::/64"},
		{50, "[2001:db8:1:ffff:3:4:5:6]:9", "2001:db8:1:c000::/50"},
		{128, "[2001:db8::6]:9", "2001:db8::6"},
		{64, "[::ffff:192.0.2.1]:9", "192.0.2.1"},
		{64, "@", "-"},
	} {
		request := &http.Request{RemoteAddr: c.peer}
		if found := ClientNetworkKey("api", c.bits)(request)[0]; found != "api client="+c.expected {
			t.Errorf("%v: %s", c, found)
		}
	}
}
