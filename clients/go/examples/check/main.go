// Logins of one address: three an hour, by the rule "login *" of the server.
package main

import (
	"context"
	"fmt"
	"log"

	"tidegate"
)

func main() {
	client, err := tidegate.New(tidegate.Config{})
	if err != nil {
		log.Fatal(err)
	}
	for number := 1; number <= 4; number++ {
		key := tidegate.MakeKey("login", "client", "192.0.2.7")
		result, err := client.Check(context.Background(), key)
		if err != nil {
			log.Fatal(err)
		}
		if result.Allowed {
			fmt.Printf("login %d: allowed\n", number)
		} else {
			fmt.Printf("login %d: refused by the rule %s\n", number, result.RefusedBy)
		}
	}
}
