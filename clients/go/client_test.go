package tidegate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

var background = context.Background()

func must(t *testing.T, result Result, err error) Result {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if result.Err != nil {
		t.Fatal(result.Err)
	}
	return result
}

func TestAKeyIsAllowedUntilItsLimitIsReached(t *testing.T) {
	client := patient(t)
	ask := func() Result {
		result, err := client.Check(background, "login check")
		return must(t, result, err)
	}
	for remaining := int64(2); remaining >= 0; remaining-- {
		result := ask()
		if !result.Allowed || result.Delay != 0 || result.Degraded || len(result.Limits) != 1 {
			t.Fatalf("%+v", result)
		}
		limit := result.Limits[0]
		if limit.Key != "login check" || limit.Rule != "logins" || limit.Limit != "3 per hour" ||
			limit.Amount != 3 || limit.Period != time.Hour || *limit.Remaining != remaining {
			t.Fatalf("%+v", limit)
		}
	}
	result := ask()
	if result.Allowed || result.RefusedBy != "logins" || result.Delay <= 0 ||
		result.Delay > 20*time.Minute || result.Header.Get("Retry-After") == "" {
		t.Fatalf("%+v", result)
	}
}

func TestAPeekTakesNothingAndACostTakesSeveral(t *testing.T) {
	client := patient(t)
	check := func(expected bool, options ...Option) {
		t.Helper()
		result, err := client.Check(background, "login peek", options...)
		if must(t, result, err).Allowed != expected {
			t.Fatalf("%+v", result)
		}
	}
	for number := 0; number < 5; number++ {
		check(true, Cost(3), Peek())
	}
	check(true, Cost(3))
	check(false, Peek())
}

func TestSeveralKeysAreAllOrNothing(t *testing.T) {
	client := patient(t)
	taken, err := client.Check(background, "login all-a", Cost(3))
	must(t, taken, err)
	both, err := client.Check(background, "login all-b", Keys("login all-a"))
	if must(t, both, err).Allowed || len(both.Limits) != 2 {
		t.Fatalf("%+v", both)
	}
	left, err := client.Check(background, "login all-b", Peek())
	if *must(t, left, err).Limits[0].Remaining != 3 {
		t.Fatalf("%+v", left)
	}
}

func TestAKeyWithoutRuleHasNoLimitAndAClosedOneNoDelay(t *testing.T) {
	client := patient(t)
	unknown, err := client.Check(background, "nobody knows it")
	if !must(t, unknown, err).Allowed || len(unknown.Limits) != 0 {
		t.Fatalf("%+v", unknown)
	}
	closed, err := client.Check(background, "closed")
	if must(t, closed, err).Allowed || closed.Delay != Unknown ||
		closed.Header.Get("Retry-After") != "" {
		t.Fatalf("%+v", closed)
	}
}

func TestOddKeysArriveAsTheyAre(t *testing.T) {
	client := patient(t)
	for _, key := range []string{
		"login \x00\n\"\\\x7f<&>", "login é\u2028\U0001f980", "login " + strings.Repeat("é", 509),
	} {
		result, err := client.Check(background, key)
		if must(t, result, err).Limits[0].Key != key {
			t.Fatalf("%q %+v", key, result)
		}
	}
}

func TestAnEmptyKeyAndTheLongestWaitAreSent(t *testing.T) {
	client := patient(t)
	result, err := client.Wait(background, "", math.MaxInt64)
	if !must(t, result, err).Allowed {
		t.Fatalf("%+v", result)
	}
}

func TestKeysThatNoServerTakesAreTold(t *testing.T) {
	client := patient(t)
	for _, key := range []string{strings.Repeat("x", 1025), strings.Repeat("é", 513), "\xff"} {
		_, err := client.Check(background, "login fine", Keys(key))
		if invalid := (*InvalidKey)(nil); !errors.As(err, &invalid) {
			t.Fatalf("%q: %v", key, err)
		}
	}
}

func TestWrongRequestsAreTold(t *testing.T) {
	client := patient(t)
	check := func(reason, key string, options ...Option) {
		t.Helper()
		_, err := client.Check(background, key, options...)
		if invalid := (*InvalidRequest)(nil); !errors.As(err, &invalid) || invalid.Reason != reason {
			t.Fatalf("%s: %v", reason, err)
		}
	}
	check("in_flight_key", "jobs wrong")
	check("cost_zero", "login wrong", Cost(0))
	check("cost_above_limit", "login wrong", Cost(4))
	check("too_many_keys", "login wrong", Keys(strings.Split(strings.Repeat("x,", 33), ",")...))
	check("max_wait", "login wrong", MaxWait(time.Second))
	_, err := client.Hold(background, "jobs wrong", 1, Keys("jobs other"), MaxWait(time.Second))
	if err == nil || err.Error() != "tidegate: keys: a single key can wait" {
		t.Fatal(err)
	}
}

func TestANegativeWaitIsWrong(t *testing.T) {
	client := patient(t)
	taken, err := client.Check(background, "login past", Cost(3))
	must(t, taken, err)
	for _, past := range []time.Duration{-time.Second, -1, math.MinInt64} {
		_, err := client.Wait(background, "login past", past)
		_, err2 := client.Hold(background, "jobs past", time.Second, MaxWait(past))
		for _, err := range []error{err, err2} {
			invalid := (*InvalidRequest)(nil)
			if !errors.As(err, &invalid) || invalid.Reason != "max_wait" {
				t.Fatal(past, err)
			}
		}
	}
}

func TestWhoWaitsGoesWhenTheUseBeforeEnds(t *testing.T) {
	client := patient(t)
	first, err := client.Hold(background, "jobs wait", time.Hour)
	if err != nil || !first.Allowed {
		t.Fatal(first, err)
	}
	second := make(chan bool)
	go func() {
		use, err := client.Hold(background, "jobs wait", time.Hour, MaxWait(patience))
		if err == nil {
			_, err = use.Release()
		}
		second <- err == nil && use.Allowed
	}()
	untilWaiting(t, 1)
	if released, err := first.Release(); !released || err != nil {
		t.Fatal(released, err)
	}
	if !<-second {
		t.Fatal("it did not go")
	}
	closed, err := client.Wait(background, "closed", 0)
	if must(t, closed, err).Allowed {
		t.Fatal(closed)
	}
}

func TestAWaitThatIsGivenUpLeavesTheLine(t *testing.T) {
	client := patient(t)
	taken, err := client.Check(background, "login left", Cost(3))
	must(t, taken, err)
	ctx, stop := context.WithCancel(background)
	waits := make(chan error)
	go func() {
		_, err := client.Wait(ctx, "login left", time.Hour)
		waits <- err
	}()
	untilWaiting(t, 1)
	stop()
	if err := <-waits; err != context.Canceled {
		t.Fatal(err)
	}
	untilWaiting(t, 0)
	late, err := client.Wait(background, "login left", 50*time.Millisecond)
	if must(t, late, err).Allowed || late.RefusedBy != "logins" {
		t.Fatalf("%+v", late)
	}
}

func TestAUseIsReleasedOnceAndAfterAPanic(t *testing.T) {
	client := patient(t)
	hold := func() *Use {
		use, err := client.Hold(background, "jobs held", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		must(t, use.Result, nil)
		return use
	}
	func() {
		defer func() { _ = recover() }()
		use := hold()
		defer use.Release()
		if !use.Allowed || hold().Allowed {
			t.Error("one is in flight, and another is not")
		}
		panic("work")
	}()
	use := hold()
	id := use.ID
	for _, expected := range []bool{true, false} {
		if released, err := use.Release(); released != expected || err != nil {
			t.Fatal(released, err)
		}
	}
	if released, err := client.Release(background, id); released || err != nil {
		t.Fatal(released, err)
	}
	free, err := client.Hold(background, "login held", time.Hour)
	if err != nil || !free.Allowed || free.ID != "" {
		t.Fatal(free, err)
	}
}

func TestWhatTheServerDecidesWithoutItsStoreIsDegraded(t *testing.T) {
	client := made(t, Config{Server: os.Getenv("TIDEGATE_DEGRADED"), Timeout: patience})
	result, err := client.Check(background, "login degraded")
	if !must(t, result, err).Allowed || !result.Degraded || result.Limits[0].Remaining != nil {
		t.Fatalf("%+v", result)
	}
}

func TestAServerWithAnAuthorityOfItsOwnIsAskedWithACertificate(t *testing.T) {
	papers := os.Getenv("TIDEGATE_PAPERS")
	authority, err := os.ReadFile(papers + "/ca.pem")
	caller, err2 := tls.LoadX509KeyPair(papers+"/caller.pem", papers+"/caller.key")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	trusting := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{caller}}
	for _, config := range []*tls.Config{trusting, nil} {
		settings := Config{Server: os.Getenv("TIDEGATE_TLS"), Timeout: patience, TLS: config}
		result, err := made(t, settings).Check(background, "login tls")
		if err != nil || (result.Err == nil) != (config != nil) {
			t.Fatalf("%+v %v", result, err)
		}
	}
}

// decides asks a server that gives no answer, of which the kind of error is told.
func decides(t *testing.T, server string, timeout time.Duration, kinds ...Kind) {
	t.Helper()
	for _, onError := range []OnError{Allow, Deny} {
		client := made(t, Config{Server: server, OnError: onError, Timeout: timeout})
		checked, err := client.Check(background, "x")
		waited, err2 := client.Wait(background, "x", 0)
		held, err3 := client.Hold(background, "x", time.Second)
		if err != nil || err2 != nil || err3 != nil {
			t.Fatal(err, err2, err3)
		}
		_, err = client.Release(background, "0")
		released := Result{Allowed: onError == Allow, Degraded: true, Err: err}
		for _, result := range []Result{checked, waited, held.Result, released} {
			unavailable := (*Unavailable)(nil)
			if result.Allowed != (onError == Allow) || !result.Degraded ||
				!errors.As(result.Err, &unavailable) {
				t.Fatalf("%+v", result)
			}
			known := false
			for _, kind := range kinds {
				known = known || unavailable.Kind == kind
			}
			if !known {
				t.Fatalf("kind %d: %v", unavailable.Kind, unavailable)
			}
		}
	}
}

func TestNoServer(t *testing.T) {
	decides(t, gone, patience, Unreachable)
}

func TestAServerThatNeverAnswers(t *testing.T) {
	decides(t, stub(t, ""), 0, TimedOut)
}

func TestAnswersThatDecideNothing(t *testing.T) {
	for _, answer := range useless {
		decides(t, stub(t, answer), patience, ServerError)
	}
	for _, answer := range broken {
		decides(t, stub(t, answer), patience, Unreachable, ServerError)
	}
}

func TestAnotherServer(t *testing.T) {
	client := made(t, Config{Server: stub(t, said("", "404 Not Found", "")), Timeout: patience})
	result, err := client.Check(background, "x")
	told := "404 is not an answer of Tidegate: check the URL"
	if err != nil || result.Err == nil || !strings.Contains(result.Err.Error(), told) {
		t.Fatal(result.Err, err)
	}
	elsewhere := Config{Server: os.Getenv("TIDEGATE_SERVER") + "/wrong", Timeout: patience}
	result, err = made(t, elsewhere).Check(background, "x")
	told = "is this the [http] door?"
	if err != nil || result.Err == nil || !strings.Contains(result.Err.Error(), told) {
		t.Fatal(result.Err, err)
	}
}

func TestWhoeverAskedAndWentIsNoFailureOfTheServer(t *testing.T) {
	client := made(t, Config{Server: stub(t, ""), Timeout: patience})
	ctx, stop := context.WithCancel(background)
	stop()
	if _, err := client.Check(ctx, "x"); err != context.Canceled {
		t.Fatal(err)
	}
}

func TestConnectionsAreMadeAgainAndFewRequestsAreAskedAtOnce(t *testing.T) {
	client := made(t, Config{Server: stub(t, allowed), Timeout: patience, MaxConnections: 2})
	var all sync.WaitGroup
	for number := 0; number < 40; number++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if result, err := client.Check(background, "x"); err != nil || result.Err != nil {
				t.Error(result.Err, err)
			}
		}()
	}
	all.Wait()
	narrow := made(t, Config{Server: stub(t, ""), MaxConnections: 1})
	for number := 0; number < 2; number++ {
		all.Add(1)
		go func() {
			defer all.Done()
			if result, err := narrow.Check(background, "x"); err != nil || result.Err == nil {
				t.Error(result, err)
			}
		}()
	}
	all.Wait()
}

func TestAReleaseIsTriedTwice(t *testing.T) {
	server, asked := stubOf(t, "\r\n", goneBack)
	client := made(t, Config{Server: server, Timeout: patience})
	if released, err := client.Release(background, "0"); !released || err != nil {
		t.Fatal(released, err)
	}
	if len(asked) != 2 {
		t.Fatal(len(asked))
	}
}

func TestAUseWhoseReleaseFailedCanBeReleasedAgain(t *testing.T) {
	server, asked := stubOf(t, held, "\r\n", "\r\n", goneBack)
	client := made(t, Config{Server: server, Timeout: patience})
	use, err := client.Hold(background, "x", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if released, err := use.Release(); released || err == nil {
		t.Fatal(released, err)
	}
	for _, expected := range []bool{true, false} {
		if released, err := use.Release(); released != expected || err != nil {
			t.Fatal(released, err)
		}
	}
	if len(asked) != 4 {
		t.Fatal(len(asked))
	}
}

func TestAReleaseWaitsForNoPlaceAndHasASecond(t *testing.T) {
	server, asked := stubOf(t, "", goneBack)
	client := made(t, Config{Server: server, Timeout: patience, MaxConnections: 1})
	ctx, stop := context.WithCancel(background)
	checked := make(chan error)
	go func() {
		_, err := client.Check(ctx, "x")
		checked <- err
	}()
	<-asked
	if released, err := client.Release(background, "0"); !released || err != nil {
		t.Fatal(released, err)
	}
	stop()
	if err := <-checked; err != context.Canceled {
		t.Fatal(err)
	}
	for timeout, expected := range map[time.Duration]time.Duration{
		100 * time.Millisecond: time.Second, 5 * time.Second: 5 * time.Second,
	} {
		if within := made(t, Config{Timeout: timeout}).releaseTimeout(); within != expected {
			t.Fatal(timeout, within)
		}
	}
}

func TestAWrongTimeoutOfTheEnvironmentIsNamed(t *testing.T) {
	for _, wrong := range []string{"soon", "0", "-1"} {
		t.Setenv("TIDEGATE_TIMEOUT_MS", wrong)
		_, err := New(Config{})
		if err == nil || !strings.Contains(err.Error(), "TIDEGATE_TIMEOUT_MS: \""+wrong+"\"") {
			t.Error(wrong, err)
		}
	}
}

func TestSettingsAreExamined(t *testing.T) {
	for _, config := range []Config{
		{Server: "127.0.0.1:8080"}, {Server: "ftp://127.0.0.1"}, {Server: "http://a:secret@c"},
		{Server: "http://127.0.0.1:99999"}, {Timeout: -1}, {MaxConnections: -1}, {MaxWaiting: -1},
	} {
		if _, err := New(config); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v", config, err)
		}
	}
}

func TestAValueThatIsMissingPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it made a key")
		}
	}()
	MakeKey("api", "user")
}
