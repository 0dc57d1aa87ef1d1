-- Records of the replaced inbox are not sent anywhere any more.
DROP TRIGGER {trigger} ON {like}
