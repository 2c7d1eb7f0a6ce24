"""What keeps old classes where one head meets new ones?"""
