"""Why do averages of a task's last steps, and the Fisher information, leave weights free?"""
