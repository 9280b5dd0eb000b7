"""Authentication and authorization: connected users, and what each may do and see."""
