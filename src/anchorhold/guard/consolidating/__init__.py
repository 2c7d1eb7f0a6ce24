"""The end of a task: what every measure and hold is asked, and how what they find comes to hold, all or nothing."""
