// Runs a job only while no other runs, by the rule "jobs*" with "1 in flight".
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"tidegate"
)

func main() {
	client, err := tidegate.New(tidegate.Config{})
	if err != nil {
		log.Fatal(err)
	}
	run(client, "first job", func() {
		run(client, "second job", func() {})
	})
	run(client, "third job", func() {})
}

func run(client *tidegate.Client, name string, work func()) {
	use, err := client.Hold(context.Background(), "jobs", time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	defer use.Release()
	if !use.Allowed {
		fmt.Printf("%s: turned away\n", name)
		return
	}
	fmt.Printf("%s: runs\n", name)
	work()
}
