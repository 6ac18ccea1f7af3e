// Sends mail as fast as the rule "mail" lets it, and gives up after a quarter of a second.
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
	for number := 1; number <= 2; number++ {
		result, err := client.Wait(context.Background(), "mail", 250*time.Millisecond)
		if err != nil {
			log.Fatal(err)
		}
		if result.Allowed {
			fmt.Printf("mail %d: sent\n", number)
		} else {
			fmt.Printf("mail %d: not now\n", number)
		}
	}
}
